"""Rollouts that a language model judges: their evaluations, the spans of its calls, and again."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.fork_server import ltrain_command

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_train.rollout import Runner, Task
from ltrain_train.rollout.rewards import RewardFailed
from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Judge, Recipe
from ltrain_transforms.source import Selection, read_spans, wait_complete

Start = Callable[..., Runner]
Make = Callable[..., Task]
VERDICT = json.dumps({"evidence": "it has a semicolon", "score": 0.75})
RECIPE = """
[[policy]]
name = "sql"

[[reward]]
use = "judge"
name = "quality"
params = {{ rubric = "Is it SQL?", url = "{url}" }}
"""


@pytest.fixture
def judge(outside: Any) -> dict[str, Judge]:
    """A judge whose model is the fake server, which scores what has a result."""
    outside.rules.append(('"result"', VERDICT))
    params = {"rubric": "Is it SQL?", "model": "m", "url": f"{outside.url}/v1"}
    return {"quality": Judge.model_validate(params)}


def test_a_judge_scores_with_evidence_in_the_trace_and_is_no_call_of_the_agent(
    runner: Start, task: Make, outside: Any, judge: dict[str, Judge]
) -> None:
    started = runner("plain:solve", judges=judge)
    (result,) = started.run("train", 0, [task(gold="g")], 1, sampling={})
    assert result.rewards == {"quality": 0.75}
    assert result.llm_calls == 1
    rollout = result.identity.rollout
    assert outside.wait_spans(1, name=attributes.SPAN_ROLLOUT, rollout=rollout)
    spans = outside.spans(rollout=rollout)
    by_name = {span.name: span for span in spans}
    assert len({span.trace for span in spans}) == 1
    call, closing = by_name["chat m"], by_name[attributes.SPAN_ROLLOUT]
    assert (call.scope, call.parent) == ("ltrain.runner", by_name[attributes.SPAN_DISPATCH].span)
    values = by_name[attributes.SPAN_EVALUATION].attributes
    assert values[attributes.EVALUATION_NAME] == "quality"
    assert values[attributes.EVALUATION_VALUE] == 0.75
    assert values[attributes.EVALUATION_EXPLANATION] == "it has a semicolon"
    own = [span for span in spans if span.scope == "ltrain.runner"]
    assert closing.attributes[attributes.SPANS] == len(own) - 1
    assert closing.attributes[attributes.REWARD_DIGEST]


def test_a_judge_stands_beside_the_reward(
    runner: Start, task: Make, judge: dict[str, Judge]
) -> None:
    started = runner("plain:solve", reward="scores:several", judges=judge)
    (result,) = started.run("train", 0, [task()], 1, sampling={})
    assert result.rewards == {"answer": 0.5, "style": 2.0, "quality": 0.75}


def test_a_judge_that_talks_ends_the_run_with_what_it_answered(
    runner: Start, task: Make, outside: Any, judge: dict[str, Judge]
) -> None:
    outside.rules[:] = [('"result"', "I like it")]
    started = runner("plain:solve", judges=judge)
    with pytest.raises(RewardFailed, match=r"'quality' failed on task 'a': 3 answers.*'I like it'"):
        started.run("train", 0, [task()], 1, sampling={})


def test_no_evidence_is_recorded_where_content_is_off(
    runner: Start, task: Make, outside: Any, judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "NO_CONTENT")
    started = runner("plain:solve", judges=judge)
    started.run("train", 0, [task()], 1, sampling={})
    started.__exit__(None, None, None)
    assert outside.wait_spans(1, name=attributes.SPAN_ROLLOUT)
    assert not any(b"semicolon" in request for request in outside.requests)
    assert outside.spans(name="chat m")


def test_stored_rollouts_are_judged_by_the_judge_of_a_recipe(
    served: Any,
    runner: Start,
    task: Make,
    outside: Any,
    judge: dict[str, Judge],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = runner("plain:solve", judges=judge)
    (result,) = started.run("train", 0, [task()], 1, sampling={})
    started.__exit__(None, None, None)
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
        monkeypatch.delenv(name)
    outside.rules.insert(0, ('"result"', json.dumps({"evidence": "no", "score": 0.25})))
    (tmp_path / "ltrain.toml").write_text(RECIPE.format(url=f"{outside.url}/v1"))
    done = ltrain(tmp_path, "score", "r", "--judge", "quality")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "run r: 1 of 1 rollouts scored, 0 skipped, 0 failed",
        "mean quality: 0.250",
    ]
    unknown = ltrain(tmp_path, "score", "r", "--judge", "style")
    assert "Unknown judge 'style'. Choose from: quality" in unknown.stderr.replace("\n", " ")
    with Store.open(served.dsn) as store:
        sql = "SELECT value, explanation FROM otel.evaluations WHERE name = 'quality'"
        assert set(store.query(sql).rows()) == {(0.75, "it has a semicolon"), (0.25, "no")}
        assert wait_complete(store, [str(result.identity.rollout)], 10) == set()
        recipe = Recipe.load(tmp_path / "ltrain.toml")
        spans, _ = read_spans(store, recipe.source, Selection(run="r"))
    shown = ltrain(tmp_path, "show", str(result.identity.rollout)).stdout
    assert re.search(
        r"^  reward quality \+0\.250 \(runner; evidence span \w{16}\)\n    score 0\.25: no$",
        shown,
        re.MULTILINE,
    )
    tables = derive(spans, recipe).tables
    assert tables["calls"].filter(pl.col("kind") == "llm").height == 0
    assert "chat m" not in str(tables["drops"].to_dicts())
    assert tables["rewards"].select("rule", "value").rows() == [("quality", 0.25)]


def ltrain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [ltrain_command(), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
