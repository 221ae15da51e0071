"""Stages of the check of a GPU: their list, their limits, the table and the JSON."""

import io
import json
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from benchmarks.gpu.__main__ import parse
from benchmarks.gpu.report import describe, print_table, shorten
from benchmarks.gpu.runner import run_stage
from benchmarks.gpu.stage import STAGES, Check, Row, Stage, find_stage
from rich.console import Console

ROOT = Path(__file__).parents[3]
CHECK = [sys.executable, "-m", "benchmarks.gpu"]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import json, os, sys, time\nout = sys.argv[2]\n{code}"]


def is_alive(status: Path) -> bool:
    try:
        return "Z (zombie)" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_each_stage_has_a_name_and_a_module_that_makes_rows() -> None:
    names = [stage.name for stage in STAGES]
    assert len(set(names)) == len(names)
    for stage in STAGES:
        assert callable(import_module(f"benchmarks.gpu.{stage.module}").rows)
        assert find_stage(stage.name) is stage


def test_a_name_that_no_stage_has_is_an_error() -> None:
    with pytest.raises(SystemExit, match=r"Unknown stage 'sampling'\. Choose from: doctor, "):
        find_stage("sampling")


@pytest.mark.parametrize(
    ("row", "bar", "ok"),
    [
        (Row("a", 1.0), "", None),
        (Row("a", 20_000.0, at_least=20_000), "at least 20,000", True),
        (Row("a", 0.021, at_most=0.02), "at most 0.02", False),
        (Row("a", 5.0, at_least=1, at_most=4), "at least 1, at most 4", False),
    ],
)
def test_a_row_meets_its_bar_or_not(row: Row, bar: str, ok: bool | None) -> None:
    assert (row.bar, row.ok) == (bar, ok)


def test_bars_of_rates_hold_for_the_real_sizes_on_a_gpu(tmp_path: Path) -> None:
    checks = [("cuda", False), ("cuda", True), ("cpu", False)]
    bars = [Check(device, quick, tmp_path, tmp_path).bar(3.0) for device, quick in checks]
    assert bars == [3.0, None, None]


def test_a_stage_that_fails_keeps_its_rows_and_names_the_cause(tmp_path: Path) -> None:
    row = json.dumps(Row("a", 1.0, "s").encode())
    code = f"open(f'{{out}}/s.jsonl', 'a').write({row + chr(10)!r}); sys.exit('no memory')"
    result = run_stage(Stage("s", 60, "loop"), python(code), tmp_path)
    first, second = result["rows"]
    assert (first["name"], first["value"], first["ok"]) == ("a", 1.0, None)
    assert (second["name"], second["ok"]) == ("completed", False)
    assert second["note"] == "ended with status 1: no memory"


def test_a_stage_is_ended_with_its_children_after_its_limit(tmp_path: Path) -> None:
    child = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
    code = f"{child}print(child.pid, flush=True)\ntime.sleep(600)"
    result = run_stage(Stage("s", 2, "loop"), python(code), tmp_path)
    assert result["rows"][0]["note"].startswith("ended after its limit of 2 s")
    pid = (tmp_path / "s.log").read_text().strip()
    status, until = Path(f"/proc/{pid}/status"), time.monotonic() + 30
    while is_alive(status) and time.monotonic() < until:  # a killed process ends soon after
        time.sleep(0.05)
    assert not is_alive(status)


def test_the_table_and_the_json_have_every_row() -> None:
    rows = [Row("rate", 19_999.6, "tokens/s", at_least=20_000, note="slow"), Row("wait", 0.01234)]
    results = [{"stage": "s", "seconds": 1.5, "rows": [row.encode() for row in rows]}]
    out = io.StringIO()
    print_table(results, Console(file=out))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines() if line.strip()]
    assert lines[0] == "| stage | value of | value | unit | bar | met |"
    assert lines[2:] == [
        "| s | rate | 20,000 | tokens/s | at least 20,000 | NO |",
        "| s | wait | 0.0123 | | | |",
        "s, rate: slow",
    ]
    described = describe(results, "cpu")
    assert (described["value"], described["device"]) == (1, "cpu")
    assert described["stages"] == results


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1e-7, "1e-07"), (999.94, "1e+03"), (61_234.0, "61,234")]
)
def test_values_are_short(value: float, text: str) -> None:
    assert shorten(value) == text


@pytest.mark.nightly
def test_the_command_checks_a_stage_on_a_cpu(tmp_path: Path) -> None:
    options = ["doctor", "--device", "cpu", "--quick", "--out", str(tmp_path)]
    done = subprocess.run([*CHECK, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    result = json.loads((tmp_path / "result.json").read_text())
    (stage,) = result["stages"]
    assert {"vllm", "all weights"} <= {row["name"] for row in stage["rows"]}
    assert done.returncode == bool(result["value"])
    assert "| doctor | vllm " in " ".join(done.stdout.split())
    assert json.loads(done.stdout.splitlines()[-1])["name"] == "gpu-check"


def test_options_name_the_stages() -> None:
    options = parse(["sampled", "served", "--skip", "served"])
    assert (options.stages, options.skip) == (["sampled", "served"], ["served"])
    assert (options.device, options.quick) == ("cuda", False)


@pytest.mark.nightly
def test_all_stages_run_on_a_cpu(tmp_path: Path) -> None:
    command = [*CHECK, "--device", "cpu", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    result = json.loads((tmp_path / "result.json").read_text())
    assert done.returncode == 0, done.stdout
    assert [stage["stage"] for stage in result["stages"]] == [stage.name for stage in STAGES]
    assert all(stage["rows"] for stage in result["stages"])
