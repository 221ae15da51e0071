"""`ltrain apo` as a user types it, with a fake program in place of vLLM and a server as critic."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import kill
from tests.train.prompts.conftest import COMMAND, write_recipe

from ltrain_train.policy import read_prompt_version

RUN = "words-greeting"
VERSIONS_SQL = (
    "SELECT SpanName AS name, Mode AS mode, SpanAttributes['ltrain.prompt.greeting'] AS version, "
    f"count() AS spans FROM otel.spans WHERE RunId = '{RUN}' AND version != '' AND SpanName IN "
    "('ltrain.solve', 'ltrain.rollout.dispatch', 'answer') GROUP BY ALL ORDER BY ALL"
)
ROLLOUTS_SQL = (
    f"SELECT countIf(SpanName = 'ltrain.rollout') AS closed, "
    "uniqExactIf(RolloutId, RolloutId != '') AS rollouts, "
    f"countIf(ScopeName = 'ltrain.runner' AND GenAiOp = 'chat') AS asked, "
    f"countIf(ScopeName = 'ltrain.runner' AND GenAiOp = 'chat' AND RolloutId != '') AS inside "
    f"FROM otel.spans WHERE RunId = '{RUN}'"
)


def store(project: Any) -> str:
    return f"chdb://{project.home / 'store'}"


def sql(project: Any, statement: str) -> list[dict[str, Any]]:
    done = project.ltrain("sql", statement, "--store", store(project), "--format", "json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def records(project: Any) -> list[dict[str, Any]]:
    lines = (project.home / "runs" / RUN / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_better_prompt_is_found_and_becomes_current(words: Any, critic: Any) -> None:
    done = words.ltrain("apo")
    assert done.returncode == 0, done.stderr + done.stdout
    assert words.policies.current("greeting") == 1
    assert read_prompt_version(words.policies, "greeting", 1) == "w5 {question}"
    assert words.policies.read_version("greeting", 1).parent == 0
    text = " ".join(done.stdout.split())
    assert "Run words-greeting starts from greeting@0: 2 rounds, beam of 1" in text
    assert "Round 1: 1 candidates and 2 dropped (1 lost_slot, 1 new_slot). Best: greeting@1" in text
    assert "Round 2: 0 candidates and 2 dropped (2 no_prompt). Best: greeting@1, 1.000" in text
    assert "greeting@1 is current: 1.000 on held-out tasks, greeting@0 0.000." in text
    assert "Test tasks: 0.000 with v0, then 1.000 with v1; " in text
    dropped = [each["dropped"] for each in records(words) if "dropped" in each]
    assert sorted(dropped) == ["lost_slot", "new_slot", "no_prompt", "no_prompt"]
    accepted = [each for each in records(words) if "version" in each]
    assert [(each["version"], each["parent"]) for each in accepted] == [(1, 0)]
    assert accepted[0]["critique"].startswith("It lacks a word")
    assert critic.keys == {"Bearer k-1"}
    first = critic.shown(0)
    assert first["prompt"] == "w1 {question}"
    assert {each["score"] for each in first["examples"]} == {0.0}
    assert first["examples"][0]["result"]["answer"].startswith("w1 w1")
    listed = words.ltrain("policy", "list", "greeting", "--json")
    scores = {
        each["version"]: (each["validation"], each["training"], each["best"])
        for each in json.loads(listed.stdout)["greeting"]
    }
    assert scores == {0: (0.0, 0.0, False), 1: (1.0, 1.0, True)}
    spans = {(row["name"], row["mode"], row["version"]) for row in sql(words, VERSIONS_SQL)}
    assert spans >= {
        (name, mode, version)
        for name in ("ltrain.solve", "ltrain.rollout.dispatch")
        for mode in ("train", "val", "test")
        for version in "01"
    }
    counts = sql(words, ROLLOUTS_SQL)[0]
    assert int(counts["asked"]) == len(critic.requests)
    assert int(counts["inside"]) == 0
    shown = " ".join(words.ltrain("show", f"run:{RUN}", "--store", store(words)).stdout.split())
    assert "val 0 greeting@0, policy@0 3" in shown and "val 1 greeting@1, policy@0 3" in shown


@pytest.mark.nightly
def test_a_command_reads_the_version_of_its_attempt(words: Any, critic: Any) -> None:
    write_recipe(words, critic, COMMAND)
    recipe = words.folder / "ltrain.toml"
    recipe.write_text(recipe.read_text().replace("rounds = 2", "rounds = 1"))
    done = words.ltrain("apo")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "greeting@1 is current: 1.000 on held-out tasks" in done.stdout
    spans = {(row["name"], row["version"]) for row in sql(words, VERSIONS_SQL)}
    assert spans >= {("answer", "0"), ("answer", "1")}


@pytest.mark.nightly
def test_a_killed_search_asks_and_runs_nothing_twice(words: Any, critic: Any) -> None:
    critic.holds.clear()
    with subprocess.Popen(
        words.command("apo"),
        env=words.environ,
        cwd=words.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        _wait(lambda: critic.requests)
        kill(process)
    critic.holds.set()
    before = len(critic.requests)
    critic.failing_from = before + 2  # it gets one whole critique and an edit, and goes away
    failed = words.ltrain("apo")
    assert failed.returncode == 1, failed.stderr
    assert "The critic has not answered within 3 s" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert words.policies.current("greeting") == 0
    kept = (words.home / "runs" / RUN / "prompts.jsonl").read_bytes()
    critic.failing_from = None
    done = words.ltrain("apo")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Run words-greeting goes on from greeting@0" in done.stdout
    assert "greeting@1 is current: 1.000 on held-out tasks" in done.stdout
    assert (words.home / "runs" / RUN / "prompts.jsonl").read_bytes().startswith(kept)
    answers = [each for each in records(words) if "answer" in each]
    assert len(critic.requests) - before == len(answers)  # the killed one had no answer
    counts = sql(words, ROLLOUTS_SQL)[0]
    assert counts["closed"] == counts["rollouts"]
    assert _waves(words, "test") == [0, 1]
    again = words.ltrain("apo")
    assert "Run words-greeting-2 starts from greeting@1" in again.stdout, again.stderr
    assert "No prompt is better than greeting@1, 1.000 on held-out tasks." in again.stdout


def _waves(project: Any, mode: str) -> list[int]:
    """Return the numbers of the waves of a mode whose scores the journal has."""
    lines = (project.home / "runs" / RUN / "journal.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [e["wave"] for e in events if e["event"] == "evaluated" and e["mode"] == mode]


def _wait(done: Any, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.nightly
def test_what_cannot_be_optimized_is_refused(words: Any) -> None:
    recipe = words.folder / "ltrain.toml"
    text = recipe.read_text()
    for old, new, fault in (
        ("[prompt]", "[ignored]", "ignored"),
        ('policy = "greeting"', 'policy = "nothing"', "'nothing' has no version. Add the prompt"),
        ('key = "CRITIC_KEY"', 'key = "ABSENT"', "The critic needs the key of its model in ABSENT"),
    ):
        recipe.write_text(text.replace(old, new, 1))
        _refused(words, fault)
    words.policies.register("weights", Path(words.policies.path("policy", 0)))
    recipe.write_text(text.replace('policy = "greeting"', 'policy = "weights"'))
    _refused(words, "'weights' is a policy of weights, and `ltrain apo` optimizes prompts")
    recipe.write_text(text[: text.index("[prompt]")])
    _refused(words, "The recipe has no [prompt] section")

    recipe.write_text(
        text[: text.index("[prompt]")].replace('name = "policy"', 'name = "greeting"')
    )
    _refused(words, "The policy 'greeting' is a prompt, which has no weights to train", "run")


def _refused(project: Any, fault: str, command: str = "apo") -> None:
    done = project.ltrain(command)
    assert done.returncode == 1, done.stdout
    assert fault in done.stderr and "Traceback" not in done.stderr
