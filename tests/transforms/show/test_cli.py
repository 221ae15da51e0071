"""`ltrain build` and `ltrain show` as subprocesses."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import ltrain_command
from tests.otlp import insert_otlp, open_empty_store


def ltrain(folder: Path, *arguments: str, columns: int = 160) -> "subprocess.CompletedProcess[str]":
    own = {"LTRAIN_STORE": f"chdb://{folder}/store", "COLUMNS": str(columns)}
    environment = {**os.environ, **own, "LTRAIN_HOME": ".ltrain"}
    command = [ltrain_command(), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def folder(scene: Any, recipe_file: Path) -> Path:
    """A recipe and a store with one group of two."""
    for sample in range(2):
        rollout = scene.attempt("t1", sample)
        rollout.dispatch()
        rollout.llm("write", text="SELECT name FROM singer", state={"question": "who sings?"})
        rollout.tool(error="boom()" if sample == 0 else "", state={"query": "SELECT"})
        rollout.evaluate(float(sample), explanation=f"it has {sample}\nof 1 rows")
        rollout.close()
    with open_empty_store(recipe_file.parent / "store") as store:
        insert_otlp(store, scene.request())
    return recipe_file.parent


def test_a_rollout_is_shown_by_the_beginning_of_its_id(folder: Path, scene: Any) -> None:
    failed = scene.attempts[0]
    done = ltrain(folder, "show", failed.rollout[:6])
    assert (done.returncode, done.stderr) == (0, "")
    span = failed.spans[7].span
    calls = [
        "#0 node write  +0.000 s, 0.007 s  ok",
        "└── #1 llm sql in write  +0.001 s, 0.005 s  ok  3+2 ids  sql@0",
        "      SELECT name FROM singer",
        "      reward tool-failed -0.200 (rule; evidence #3 execute_query)",
        "      return -0.200, advantage -0.807 = outcome -0.707, process -0.100",
        f"      trained 2 tokens in row 1 ({row_of(folder, failed)})",
        "#2 node execute_query  +0.007 s, 0.003 s  ok",
        "└── #3 tool execute_query  +0.008 s, 0.001 s  error: boom",
    ]
    head = [
        f"rollout {failed.rollout}",
        "run demo, mode train, wave 0, task t1, sample 0, domain db",
        "attempt 1: ok after 0.01 s (critical path 0.01 s); 1 LLM call and 1 tool call in 1 trace",
        "outcome reward 0; its group of 2: mean 0.500",
        f"  reward answer +0.000 (runner; evidence span {span})",
        "    score 0: it has 0 of 1 rows",
    ]
    shown = [line.rstrip() for line in done.stdout.splitlines()]
    assert shown[:6] == head
    assert '  input question = "who sings?"' in shown
    assert [line for line in shown if line in calls] == calls
    assert shown[-1] == "judged by ltrain.toml"
    assert "\x1b" not in done.stdout, "colours are only for terminals"


def row_of(folder: Path, attempt: Any) -> str:
    done = ltrain(folder, "show", attempt.rollout, "--json")
    return str(json.loads(done.stdout)["samples"][0]["sample_id"][:8])


@pytest.mark.parametrize("what", ["rollout", "demo", "made", "sql"])
def test_eighty_columns_are_enough(folder: Path, scene: Any, what: str) -> None:
    publish(folder, 0, 1)
    ltrain(folder, "build", "--out", "made")
    name = scene.attempts[0].rollout if what == "rollout" else what
    done = ltrain(folder, "show", name, columns=80)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout, "a cell is cut"


def test_a_rollout_as_json(folder: Path, scene: Any) -> None:
    done = ltrain(folder, "show", scene.attempts[1].rollout, "--json")
    shown = json.loads(done.stdout)
    assert [reward["rule"] for reward in shown["rewards"]] == ["answer"]
    assert [call["kind"] for call in shown["calls"]] == ["node", "llm", "node", "tool"]


def test_an_unknown_id_is_an_error(folder: Path) -> None:
    publish(folder, 0)
    done = ltrain(folder, "show", "demmo")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        r"ltrain: Nothing is called 'demmo'\. Searched for a dataset \(the folder demmo, or by "
        r"id in \.ltrain/datasets\); a policy in \.ltrain/policies \(there: sql\); "
        r"a run in chdb://\S+ \(there: demo\); a rollout whose id begins so in chdb://\S+; "
        r"a trace whose id begins so in chdb://\S+; a session whose id begins so in chdb://\S+; "
        r"a span of that id in chdb://\S+\. "
        r"Did you mean the run 'demo'\? `ltrain traces` lists what is stored\.\n",
        done.stderr,
    )
    several = ltrain(folder, "show", "rollout:")
    assert "is the beginning of 2 rollout ids" in several.stderr
    version = ltrain(folder, "show", "sql@7")
    assert "Policy 'sql' has no version 7" in version.stderr
    assert "Choose from: 0." in version.stderr
    other = ltrain(folder, "show", "policy:demo")
    assert "Searched for a policy in .ltrain/policies (there: sql)." in other.stderr


def test_a_missing_store_is_an_error(tmp_path: Path) -> None:
    done = ltrain(tmp_path, "show", "demo")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "Nothing is called 'demo'" in done.stderr
    assert "There is no store in" in done.stderr


def test_a_page_is_written_to_the_file(folder: Path, scene: Any) -> None:
    done = ltrain(folder, "show", scene.attempts[0].rollout, "--html", "page.html")
    assert done.stdout == f"rollout {scene.attempts[0].rollout}: page.html\n"
    assert (folder / "page.html").read_text().startswith("<!doctype html>")
    both = ltrain(folder, "show", "demo", "--html", "page.html", "--json")
    assert both.returncode == 2


def publish(folder: Path, *numbers: int) -> None:
    """Write versions in the format of `Policies`."""
    for number in numbers:
        version = folder / ".ltrain" / "policies" / "sql" / f"v{number}"
        version.mkdir(parents=True)
        manifest = {"policy": "sql", "version": number, "created": 1_790_000_000 + number}
        manifest |= {"parent": number - 1, "dataset": f"d{number}", "recipe": "r"} if number else {}
        files = {"model.safetensors": {"size": 1500, "sha256": "ab" * 32}}
        (version / "policy.json").write_text(json.dumps(manifest | {"files": files}))
    (version.parent / "current").write_text("0\n")


def test_a_dataset_is_built_and_shown(folder: Path) -> None:
    publish(folder, 0)
    built = ltrain(folder, "build", "--out", "made", "--json")
    assert built.stderr == ""
    assert json.loads((folder / "made" / "manifest.json").read_text())["base"].keys() == {"model"}
    assert json.loads(built.stdout)["counts"]["samples"] == 2
    shown = ltrain(folder, "show", "made")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert json.loads(built.stdout)["id"] in shown.stdout


def test_a_bad_recipe_and_an_empty_selection_are_one_message(folder: Path) -> None:
    recipe = folder / "ltrain.toml"
    none = ltrain(folder, "build", "--run", "nobody")
    assert (none.returncode, len(none.stderr.splitlines())) == (1, 1)
    assert "Runs in the store: demo" in none.stderr
    recipe.write_text(recipe.read_text().replace("credit_to", "credit_too"))
    bad = ltrain(folder, "build")
    assert bad.returncode == 1
    assert "Did you mean 'credit_to'?" in bad.stderr
