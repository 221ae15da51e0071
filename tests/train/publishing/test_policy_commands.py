"""`ltrain policy`: what it prints, what it changes, and what it refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.train.publishing.test_retention import home as home  # a fixture

from ltrain_train.errors import BadModel, FolderNotEmpty, RunInUse, UnknownVersion
from ltrain_train.policy import Policies
from ltrain_train.processes import locks
from ltrain_train.publishing import policy_commands

HOLDER = """
import sys, time
from pathlib import Path
from ltrain_train.processes import run_lock
with run_lock(Path(sys.argv[1]), run="demo", policy="sql"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(home))
    monkeypatch.setenv("LTRAIN_GATEWAY", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("COLUMNS", "120")


def test_versions_are_listed_with_scores_and_marks(capsys: pytest.CaptureFixture[str]) -> None:
    policy_commands.list_versions(None, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["Policy", "sql"]
    assert lines[1][:5] == ["version", "from", "val", "train", "dataset"]
    assert lines[2][:2] == ["v0", "0.200"]
    assert lines[9][:5] == ["v7", "current", "v6", "0.800", "d7"]
    assert lines[10][:5] == ["v8", "best", "v7", "0.800", "d8"]
    assert [" ".join(line) for line in lines[11:]] == [
        "Validation, mean [95 % interval over tasks]:",
        "v0: 0.200, 4 rollouts",
        "v3: 0.780 [0.300, 0.900], 5 rollouts",
        "v8: 0.800, 4 rollouts, 1 failed",
    ]
    policy_commands.list_versions("sql", as_json=True)
    listed = json.loads(capsys.readouterr().out)["sql"]
    assert (listed[3]["validation"], listed[3]["training"]) == (pytest.approx(0.78), 0.4)
    assert (listed[3]["interval"], listed[3]["rollouts"]) == ([0.3, 0.9], 5)
    assert listed[3]["size"] > 0
    assert [each["version"] for each in listed if each["best"] or each["current"]] == [7, 8]
    with pytest.raises(UnknownVersion, match="Unknown policy 'other'"):
        policy_commands.list_versions("other", as_json=False)


@pytest.mark.parametrize("width", [80, 60])
def test_no_cell_of_the_table_is_cut(
    home: Path,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    row = {"artifact": "adapter", "parent": 120, "validation": -1.25, "training": 0.5}
    row |= {"interval": [-1.5, -1.0], "rollouts": 1200, "failed": 3}
    row |= {"dataset": "e3cbcfad688fbb50", "created_at": "2026-11-24 09:10", "size": 99_940_000}
    versions = [
        {"version": 9, "current": False, "best": False, **row},
        {"version": 12, "current": True, "best": True, **row, "size": 16_400_000_000},
    ]
    monkeypatch.setattr(policy_commands, "_describe_versions", lambda *_: versions)
    policy_commands.list_versions("sql", as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    if width == 80:
        assert len(lines) == 7
        cells = "v12 current best adapter v120 -1.250 0.500 e3cbcfad688fbb50 11-24 09:10 16.4 GB"
        assert [line.split() for line in lines[3:4]] == [cells.split()]


def test_a_version_becomes_current_without_a_gateway(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy_commands.use_version("sql@3")
    assert Policies(home).current("sql") == 3
    assert capsys.readouterr().out == (
        "Version 3 of policy 'sql' is current, previously 7. No gateway serves the policy now. "
        "Serve it with `ltrain serve --policy sql`.\n"
    )
    for wrong, sentence in (("sql", "Write NAME@VERSION"), ("sql@12", "no version 12. Choose")):
        with pytest.raises(UnknownVersion, match=sentence):
            policy_commands.use_version(wrong)


def test_a_policy_without_a_current_version_gets_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "policies" / "sql" / "current").unlink()
    policy_commands.list_versions("sql", as_json=False)
    assert "current" not in capsys.readouterr().out
    policy_commands.use_version("sql@3")
    assert capsys.readouterr().out.startswith("Version 3 of policy 'sql' is current. No gateway")
    assert Policies(home).current("sql") == 3


def test_a_policy_that_a_run_trains_is_not_changed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "BUSY_TIMEOUT", 0.2)
    command = [sys.executable, "-c", HOLDER, str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(RunInUse, match=f"policy sql of .* is in use by process {holder.pid}"):
            policy_commands.use_version("sql@3")
        with pytest.raises(RunInUse):
            policy_commands.remove_versions("sql", keep=1, yes=True)
        holder.kill()
    assert Policies(home).current("sql") == 7
    assert len(Policies(home).versions("sql")) == 9


def test_old_versions_are_counted_then_removed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy_commands.remove_versions("sql", keep=2, yes=False)
    printed = capsys.readouterr()
    assert printed.out.startswith("6 versions (v1, v2, v3, v4, v5, v6) would be removed (")
    assert "add --yes" in printed.err
    assert len(Policies(home).versions("sql")) == 9
    policy_commands.remove_versions("sql", keep=2, yes=True)
    assert "MB freed. Versions of 'sql' now: 0, 7, 8." in capsys.readouterr().out


def test_an_export_is_a_model_directory(home: Path) -> None:
    out = home / "out" / "sql-3"
    policy_commands.export_version("sql@3", out, merged=False)
    names = {"config.json", "tokenizer.json", "model.safetensors"}
    assert {file.name for file in out.iterdir()} == names
    content = Policies(home).path("sql", 3) / "model.safetensors"
    assert (out / "model.safetensors").read_bytes() == content.read_bytes()
    with pytest.raises(FolderNotEmpty, match="exists and is not an empty folder"):
        policy_commands.export_version("sql@3", out, merged=True)
    empty = home / "empty"
    empty.mkdir()
    policy_commands.export_version("sql@0", empty, merged=True)  # it is no adapter
    assert {file.name for file in empty.iterdir()} == names


def test_versions_that_were_made_elsewhere_are_added(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "greeting.txt"
    text.write_text("Be brief.")
    policy_commands.add_version("greeting", text, parent=None)
    policy_commands.add_version("greeting", text, parent=0)
    assert capsys.readouterr().out.splitlines() == [
        "Version 0 of policy 'greeting' is added (prompt). It is current.",
        "Version 1 of policy 'greeting' is added (prompt). Make it current with `ltrain policy use "
        "greeting@1`.",
    ]
    policy_commands.list_versions("greeting", as_json=False)
    assert re.search(r"^v0 current prompt ", capsys.readouterr().out, re.MULTILINE)
    policy_commands.use_version("greeting@1")
    assert Policies(home).current("greeting") == 1
    with pytest.raises(BadModel, match=r"There is no '.*absent'\. Name a model in"):
        policy_commands.add_version("sql", tmp_path / "absent", parent=None)
