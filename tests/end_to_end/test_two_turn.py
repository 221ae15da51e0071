"""The whole loop on a tiny random policy: real vLLM, verl, chDB and instrumentation.

The policy answers one word at a time. Half its reward is a first word that the tool takes, half a
second word of the set that the tool's result names; the two prompts do not extend each other.
"""

import json
import os
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from statistics import mean
from typing import Any

import polars as pl
import pytest
from tests.end_to_end.conftest import ENOUGH

WAVE = 96


def test_the_reward_rises(learned: Any) -> None:
    rewards = [wave["evaluations"]["true"] for wave in learned.waves]
    assert mean(rewards[-2:]) > mean(rewards[:2]), f"{rewards}"


@pytest.mark.nightly
def test_the_policy_reaches_nearly_all_of_the_reward(learned: Any) -> None:
    rewards = [wave["evaluations"]["true"] for wave in learned.waves]
    assert max(rewards) >= ENOUGH, f"{rewards}"


def test_every_trained_token_was_sampled_by_vllm(learned: Any) -> None:
    answered = Counter(_answered(learned.recorded_calls))
    datasets = sorted((learned.project.home / "datasets").glob("*/*/samples"))
    assert len(datasets) == len(learned.waves)
    for file in datasets:
        for row in pl.read_parquet(file).iter_rows(named=True):
            logprobs = struct.pack(f"<{len(row['rollout_logprobs'])}f", *row["rollout_logprobs"])
            sample = (tuple(row["prompt_ids"]), tuple(row["response_ids"]), logprobs)
            assert answered[sample] > 0
            assert row["response_mask"] == [1] * len(row["response_ids"])


def _answered(recorded_calls: list[Any]) -> list[tuple[tuple[int, ...], tuple[int, ...], bytes]]:
    calls = []
    for each in recorded_calls:
        if each.path != "/v1/chat/completions":
            continue
        answer = json.loads(each.answer)
        choice = answer["choices"][0]
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
        packed = struct.pack(f"<{len(logprobs)}f", *logprobs)
        calls.append((tuple(answer["prompt_token_ids"]), tuple(choice["token_ids"]), packed))
    return calls


def test_each_rollout_is_one_trace_with_exactly_its_calls(learned: Any) -> None:
    [counts] = learned.project.sql(
        "SELECT uniq(RolloutId) AS rollouts, uniq(TraceId) AS traces, "
        "countIf(ScopeName = 'ltrain.gateway' AND GenAiOp = 'chat') AS llm, "
        "countIf(ToolName = 'lookup') AS tools, countIf(SpanName = 'openai.chat') AS sdk "
        "FROM otel.spans WHERE RolloutId != ''"
    )
    rollouts = WAVE * len(learned.waves)
    assert {name: int(value) for name, value in counts.items()} == {
        "rollouts": rollouts,
        "traces": rollouts,
        "llm": 2 * rollouts,
        "tools": rollouts,
        "sdk": 2 * rollouts,
    }


def test_every_id_of_a_wave_is_in_a_lineage_or_a_drop(learned: Any) -> None:
    folder = learned.project.home / "datasets" / "two-turn" / "train-0"
    tables = {name: pl.read_parquet(folder / name) for name in ("calls", "drops")}
    samples = pl.read_parquet(folder / "samples")
    trained = set(samples["transition_ids"].explode().to_list())
    dropped = set(tables["drops"]["id"].to_list())
    calls = tables["calls"]
    llm = calls.filter(pl.col("kind") == "llm")
    assert llm.height == 2 * WAVE
    assert calls.filter(pl.col("kind") == "tool").height == WAVE
    for call, execution in llm.select("call_id", "execution_id").iter_rows():
        in_drops = call in dropped or execution in dropped
        assert (call in trained) != in_drops


def test_the_stored_traces_can_be_trained_on_again(learned: Any) -> None:
    """Offline, by a recipe without an agent, on the first waves' traces in the store."""
    made = learned.project
    before = _versions(made)
    written = (made.folder / "ltrain.toml").read_text()
    stored, _, rest = written.partition("[rollout]")
    (made.folder / "once.toml").write_text(
        stored + 'where = "Wave < 3"\n' + rest[rest.index("[[policy]]") :] + "max_staleness = 99\n"
    )
    command = made.training("once.toml", "--store", made.store)
    refused = subprocess.run(command, env=made.environ, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "rollouts are left out: policy 'two' was trained on them before" in refused.stderr
    assert _versions(made) == before
    [done] = made.train("once.toml", "--store", made.store, "--again")
    assert done["rows"] > 2 * WAVE
    assert done["version"] == before[-1] + 1 == _versions(made)[-1]
    assert done["served"] is True


def _versions(made: Any) -> list[int]:
    folders = (made.home / "policies" / "two").glob("v*")
    return sorted(int(folder.name[1:]) for folder in folders)


UPDATES = 18
"""Updates of the control run."""


@pytest.mark.nightly
def test_shuffled_rewards_teach_nothing_and_kills_lose_no_span(learned: Any, project: Any) -> None:
    """The control run: its collector is killed, then ctrl-C stops it, then it continues."""
    made = project("control")
    before = list(_interrupted(made))
    assert len(before) < UPDATES
    assert _processes(made) == []
    waves = before + made.train("control.toml")
    assert [wave["wave"] for wave in waves] == list(range(UPDATES))
    assert [wave["rollouts"] for wave in waves] == [WAVE] * UPDATES
    best = max(wave["evaluations"]["true"] for wave in waves[-5:])
    learned_by_then = max(wave["evaluations"]["true"] for wave in learned.waves[:UPDATES])
    assert best < 0.4 < learned_by_then
    _nothing_lost_or_doubled(made, WAVE * UPDATES)


def _interrupted(made: Any) -> Iterator[dict[str, Any]]:
    """Run until ctrl-C after the sixth wave; the collector dies in the fourth."""
    with subprocess.Popen(
        made.training("control.toml"),
        env=made.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None and run.stderr is not None
        for number, line in enumerate(run.stdout, 1):
            yield json.loads(line)
            if number == 3:
                time.sleep(1.0)
                _kill_collector(made)
            if number == 6:
                time.sleep(1.0)
                run.send_signal(signal.SIGINT)
        sample = run.stderr.read()
        assert run.wait() != 0, sample
        assert "Traceback" not in sample


def _processes(made: Any) -> list[tuple[int, str]]:
    """Return the processes with the project's folder in their command line."""
    command = ["ps", "-ww", "-eo", "pid,args"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.strip().partition(" ") for line in listed.stdout.splitlines()]
    return [(int(pid), args) for pid, _, args in lines if str(made.folder) in args]


def _kill_collector(made: Any) -> None:
    [collector] = [
        pid for pid, args in _processes(made) if "-m ltrain up" in args and "guard.py" not in args
    ]
    os.kill(collector, signal.SIGKILL)


def _nothing_lost_or_doubled(made: Any, rollouts: int) -> None:
    """Check that every span is stored once, and every rollout has one counted, complete attempt."""
    [counts] = made.sql(
        "SELECT count() AS rows, uniqExact(TraceId, SpanId) AS spans FROM otel.spans"
    )
    assert int(counts["rows"]) == int(counts["spans"])
    [whole] = made.sql(
        "SELECT count() AS attempts, uniqExact(RolloutId) AS rollouts, sum(llm) AS llm, "
        "sum(tools) AS tools FROM (SELECT RolloutId, Attempt, "
        "countIf(ScopeName = 'ltrain.gateway' AND GenAiOp = 'chat') AS llm, "
        "countIf(ToolName = 'lookup') AS tools, "
        "countIf(SpanAttributes['ltrain.rollout.outcome'] = 'ok') AS closed "
        "FROM otel.spans WHERE RolloutId != '' GROUP BY RolloutId, Attempt HAVING closed > 0)"
    )
    assert {name: int(value) for name, value in whole.items()} == {
        "attempts": rollouts,
        "rollouts": rollouts,
        "llm": 2 * rollouts,
        "tools": rollouts,
    }
