"""Waves through a worker pool: outcomes, ids, attempts, and the trace of each rollout."""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ltrain_instrument.identity import rollout_id
from ltrain_train.gateway.keys import Keyring
from ltrain_train.rollout.attempt_log import AttemptLog
from ltrain_train.rollout.rewards import RewardFailed
from ltrain_train.rollout.runner import Runner
from ltrain_train.rollout.tasks import BadTasks, Task, load_tasks
from ltrain_train.workers import Outcome
from ltrain_train.workers.reference import BadReference

Start = Callable[..., Runner]
Make = Callable[..., Task]


def test_every_rollout_of_a_wave_ends_with_its_own_id(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve", reward="scores:one", workers=2)
    results = started.run("train", 3, [task("a"), task("b")], 3, sampling={"temperature": 0.6})
    assert results.outcomes == {"ok": 6}
    assert results.means() == {"reward": 1.0}
    expected = {rollout_id("r", "train", 3, name, k) for name in "ab" for k in range(3)}
    assert {result.identity.rollout for result in results} == expected
    assert {result.llm_calls for result in results} == {1}
    assert sorted(outside.closed) == sorted(f"{rollout}.1" for rollout in expected)


def test_no_attempt_starts_or_ends_without_its_span(
    runner: Start, task: Make, outside: Any, home: Path
) -> None:
    started = runner("plain:solve")
    spool = home / "services" / "spool"
    shutil.rmtree(spool, ignore_errors=True)  # it appears with the first span
    spool.parent.mkdir(parents=True, exist_ok=True)
    spool.write_text("no folder")
    with pytest.raises(OSError, match=str(spool)):
        started.run("train", 0, [task("a")], 1, sampling={})
    assert started.log.ended([rollout_id("r", "train", 0, "a", 0)]) == []
    assert outside.closed == []


def test_a_rollout_whose_last_attempt_was_cut_off_runs_again(
    runner: Start, task: Make, home: Path
) -> None:
    tasks = [task("a"), task("b")]
    results = runner("plain:solve").run("train", 0, tasks, 1, sampling={})
    ended = [str(result.identity.rollout) for result in results]
    AttemptLog(home / "runs" / "r").begin(ended[0])  # a runner that was killed
    started = runner("plain:solve")
    [again] = started.run("train", 0, tasks, 1, sampling={}, finished=started.log.finished)
    assert (again.identity.rollout, again.identity.attempt) == (ended[0], 3)


def test_the_key_contains_the_identity_and_the_sampling(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve")
    others = {"critic": {"temperature": 1.0}}
    started.dispatch("train", 0, [task()], 1, sampling={"temperature": 0.6}, policy_sampling=others)
    started.wait()
    (call,) = outside.calls
    headers = {name.lower(): value for name, value in call.headers.items()}
    claims = Keyring("a secret of thirty-two characters").verify_attempt(
        headers["authorization"].removeprefix("Bearer ")
    )
    assert (claims.identity.run, claims.identity.task, claims.identity.attempt) == ("r", "a", 1)
    assert (claims.policy, claims.sampling) == ("sql", {"temperature": 0.6})
    assert claims.policy_sampling == others
    assert call.path.startswith(f"/rollout/{claims.identity.rollout}/attempt/1/v1/")
    assert call.body["model"] == "sql"


def test_a_rollout_is_one_trace_from_dispatch_to_close(
    runner: Start, task: Make, outside: Any, tmp_path: Path
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(task(domain="music").model_dump_json() + "\n")
    tasks = load_tasks(path)
    started = runner("plain:solve", reward="scores:several")
    (result,) = started.run("val", 7, tasks, 1, sampling={})
    spans = outside.wait_spans(6, rollout=result.identity.rollout)
    by_name = {span.name: span for span in spans}
    assert [span.name for span in spans if span.scope == "ltrain.runner"] == [
        "ltrain.rollout.dispatch",
        "ltrain.rollout",
        "gen_ai.evaluation.result",
        "gen_ai.evaluation.result",
    ]
    assert len({span.trace for span in spans}) == 1
    dispatch, closing = by_name["ltrain.rollout.dispatch"], by_name["ltrain.rollout"]
    assert [span.name for span in spans if not span.parent] == [dispatch.name]
    assert by_name["ltrain.solve"].parent == dispatch.span
    assert dispatch.attributes["ltrain.lease.until"] > dispatch.start
    assert closing.attributes == {
        "ltrain.run.id": "r",
        "ltrain.task.id": "a",
        "ltrain.domain": "music",
        "ltrain.wave": 7,
        "ltrain.sample.index": 0,
        "ltrain.rollout.id": rollout_id("r", "val", 7, "a", 0),
        "ltrain.attempt.id": 1,
        "ltrain.mode": "val",
        "ltrain.rollout.outcome": "ok",
        "ltrain.rollout.llm_calls": 1,
        "ltrain.rollout.spans": 3,
        "ltrain.tasks.digest": tasks[0].file_digest,
        "ltrain.reward.digest": closing.attributes["ltrain.reward.digest"],
        "ltrain.task.fields": "{}",
        "ltrain.rollout.result": closing.attributes["ltrain.rollout.result"],
    }
    assert dispatch.attributes["ltrain.task.input"] == '"question a"'
    assert len(closing.attributes["ltrain.reward.digest"]) == 16
    values = {
        span.attributes["gen_ai.evaluation.name"]: span.attributes["gen_ai.evaluation.score.value"]
        for span in spans
        if span.name == "gen_ai.evaluation.result"
    }
    assert values == result.rewards == {"answer": 0.5, "style": 2.0}


def test_the_agents_spans_arrive_before_its_result(runner: Start, task: Make, outside: Any) -> None:
    started = runner("plain:solve")
    (result,) = started.run("train", 0, [task()], 1, sampling={})
    agents = [
        span
        for span in outside.spans(rollout=result.identity.rollout)
        if span.scope != "ltrain.runner"
    ]
    (process,) = [span for span in agents if span.name == "ltrain.process"]
    assert process.attributes["ltrain.rollout.spans"] == len(agents) - 1 > 0
    assert {span.instance for span in agents} == {process.instance}


def test_an_error_of_the_agent_is_the_outcome_and_is_not_tried_again(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve", reward="scores:one")
    tasks = [task("a", raises=True), task("b", leaves=True), task("c", unsayable=True), task("d")]
    results = {r.identity.task: r for r in started.run("train", 0, tasks, 1, sampling={})}
    assert {name: result.outcome for name, result in results.items()} == {
        "a": Outcome.ERROR,
        "b": Outcome.ERROR,
        "c": Outcome.ERROR,
        "d": Outcome.OK,
    }
    assert results["a"].reason == "ValueError: the agent gave up"
    assert "must be JSON" in results["c"].reason
    assert {result.identity.attempt for result in results.values()} == {1}
    assert (results["a"].rewards, results["d"].rewards) == ({}, {"reward": 1.0})
    (solve,) = outside.spans(rollout=results["a"].identity.rollout, name="ltrain.solve")
    assert solve.failed


def test_a_timeout_of_a_thread_ends_no_other_attempt(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve", timeout=2.0, concurrency=2)
    # "slow" starts in the worker after "quick", and is at work when "hangs" runs out of time
    tasks = [task("hangs", sleeps=60), task("quick", sleeps=1.0), task("slow", sleeps=1.5)]
    results = {r.identity.task: r for r in started.run("train", 0, tasks, 1, sampling={})}
    assert {name: (r.outcome, r.identity.attempt) for name, r in results.items()} == {
        "hangs": (Outcome.TIMEOUT, 1),
        "quick": (Outcome.OK, 1),
        "slow": (Outcome.OK, 1),
    }
    assert 2 < results["hangs"].seconds < 4
    assert f"{results['slow'].identity.rollout}.1" in outside.closed


def test_the_others_in_a_worker_that_an_attempt_kills_are_tried_again(
    runner: Start, task: Make, outside: Any, tmp_path: Path
) -> None:
    started = runner("plain:solve", concurrency=2)
    tasks = [task("dies", dies=str(tmp_path / "once"), sleeps=0.5), task("neighbour", sleeps=1.5)]
    results = {r.identity.task: r for r in started.run("train", 0, tasks, 1, sampling={})}
    assert {name: (r.outcome, r.identity.attempt) for name, r in results.items()} == {
        "dies": (Outcome.ERROR, 1),
        "neighbour": (Outcome.OK, 2),
    }
    assert results["dies"].reason.startswith("it ended its worker: kill(")
    first = f"{results['neighbour'].identity.rollout}.1"
    assert first in outside.closed
    closings = outside.wait_spans(2, name="ltrain.rollout", rollout=first.split(".")[0])
    assert [span.attributes["ltrain.rollout.outcome"] for span in closings] == ["infra", "ok"]
    assert closings[0].attributes["ltrain.rollout.reason"] == (
        f"attempt {results['dies'].identity.rollout}.1 ended its worker"
    )


def test_all_attempts_in_a_worker_that_dies_for_an_unknown_reason_are_tried_again_alone(
    runner: Start, task: Make, outside: Any, tmp_path: Path
) -> None:
    started = runner("plain:solve", concurrency=2)
    dies = task("dies", crashes=str(tmp_path / "once"), sleeps=0.5)
    tasks = [dies, task("neighbour", sleeps=1.5)]
    results = {r.identity.task: r for r in started.run("train", 0, tasks, 1, sampling={})}
    assert {name: (r.outcome, r.identity.attempt) for name, r in results.items()} == {
        "dies": (Outcome.OK, 2),
        "neighbour": (Outcome.OK, 2),
    }
    for result in results.values():
        closings = outside.wait_spans(2, name="ltrain.rollout", rollout=result.identity.rollout)
        assert closings[0].attributes["ltrain.rollout.reason"] == (
            "its worker died; others ran in it: it is tried again alone"
        )
    one, other = (
        outside.spans(rollout=result.identity.rollout, name="ltrain.solve")[-1]
        for result in results.values()
    )
    assert one.end <= other.start or other.end <= one.start


def test_a_coroutine_is_cancelled_at_its_timeout_and_its_worker_lives(
    runner: Start, task: Make
) -> None:
    started = runner("plain:solve_async", timeout=1.0)
    tasks = [task("hangs", sleeps=60), task("b"), task("c")]
    results = {r.identity.task: r for r in started.run("train", 0, tasks, 1, sampling={})}
    assert results["hangs"].outcome is Outcome.TIMEOUT
    assert results["hangs"].reason == "cancelled after 1 s of its own time"
    assert {results[name].identity.attempt for name in "bc"} == {1}


def test_a_failing_gateway_is_not_the_agents_error(runner: Start, task: Make, outside: Any) -> None:
    started = runner("plain:needs_openai", workers=1)
    outside.refuse_calls = 1
    (result,) = started.run("train", 0, [task()], 1, sampling={})
    assert (result.outcome, result.identity.attempt) == (Outcome.OK, 2)


def test_an_outage_costs_one_try_however_long_the_policy_server_loads(
    runner: Start,
    task: Make,
    outside: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ltrain_train.rollout.attempt_limits.GATEWAY_POLL", 3.0)
    started = runner("plain:needs_openai")
    outside.refuse_calls = 2
    outside.on_refusal = lambda: setattr(outside, "status", "waiting")

    def recover() -> None:
        until = time.monotonic() + 60
        while not caplog.messages and outside.failed.total() < 6 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        outside.status = "ready"

    recovery = threading.Thread(target=recover)
    recovery.start()
    results = started.run("train", 0, [task("a"), task("b")], 1, sampling={})
    recovery.join()
    assert [(r.outcome, r.identity.attempt) for r in results] == [(Outcome.OK, 2)] * 2
    assert caplog.messages == ["ltrain: waiting for the gateway, at most 1200 s"]


def test_no_attempt_starts_while_the_gateway_holds_calls(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve")
    outside.status = "waiting"
    waiting = threading.Thread(
        target=lambda: started.run("train", 0, [task("a"), task("b")], 1, sampling={})
    )
    waiting.start()
    time.sleep(1.5)
    assert outside.spans(name="ltrain.rollout.dispatch") == []
    outside.status = "ready"
    waiting.join(60)
    closings = outside.wait_spans(2, name="ltrain.rollout")
    assert [s.attributes["ltrain.rollout.outcome"] for s in closings] == ["ok", "ok"]
    assert {s.attributes["ltrain.attempt.id"] for s in closings} == {1}


@pytest.mark.parametrize("agent", ["plain:solve", "plain:solve_async"])
def test_the_seconds_of_calls_do_not_count_against_the_time_limit(
    runner: Start, task: Make, outside: Any, agent: str
) -> None:
    started = runner(agent, timeout=1.0)
    slow, hangs = (rollout_id("r", "train", 0, name, 0) for name in ("slow", "hangs"))
    outside.call_seconds = {f"{slow}.1": 30.0, f"{hangs}.1": 1.0}
    tasks = [task("slow", sleeps=3.5)]
    (result,) = started.run("train", 0, tasks, 1, sampling={})
    assert (result.outcome, result.identity.attempt) == (Outcome.OK, 1)
    (result,) = started.run("train", 0, [task("hangs", sleeps=60)], 1, sampling={})
    assert result.outcome is Outcome.TIMEOUT
    assert result.seconds > 2


def test_finished_rollouts_are_skipped_and_attempt_numbers_continue(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve")
    first = started.run("train", 0, [task("a")], 2, sampling={})
    done = {str(first[0].identity.rollout)}
    again = started.run("train", 0, [task("a")], 2, sampling={}, finished=done)
    assert [(r.identity.rollout, r.identity.attempt) for r in again] == [
        (first[1].identity.rollout, 2)
    ]


def test_a_reward_function_that_fails_on_one_result_is_the_agents_error(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve", reward="scores:fails_on_some")
    results = started.run("train", 0, [task("a"), task("b")], 1, sampling={})
    by_task = {result.identity.task: result for result in results}
    assert by_task["b"].outcome is Outcome.ERROR
    assert by_task["b"].identity.attempt == 1
    assert "scores:fails_on_some failed on task 'b': KeyError: 'gold'" in by_task["b"].reason
    assert (
        outside.wait_spans(1, name="gen_ai.evaluation.result")[0].attributes["ltrain.task.id"]
        == "a"
    )


def test_a_reward_function_that_fails_on_most_results_ends_the_run_and_none_counts(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve", reward="scores:fails_on_some")
    with pytest.raises(RewardFailed, match=r"failed on task 'b': KeyError.*failed on 2 results"):
        started.run("train", 0, [task("a"), task("b")], 1, sampling={}, finished=())
        started.run("train", 1, [task("b")], 2, sampling={})
    closings = outside.wait_spans(4, name="ltrain.rollout")
    by_wave = Counter(
        (s.attributes["ltrain.wave"], s.attributes["ltrain.rollout.outcome"]) for s in closings
    )
    assert by_wave == {(0, "ok"): 1, (0, "error"): 1, (1, "infra"): 2}


def test_stopping_a_run_closes_attempts_in_flight_as_cancelled(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve")

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        started.run("train", 0, [task("a"), task("b", sleeps=30)], 1, sampling={}, on_result=stop)
    closings = outside.wait_spans(2, name="ltrain.rollout")
    outcomes = {
        s.attributes["ltrain.task.id"]: s.attributes["ltrain.rollout.outcome"] for s in closings
    }
    assert outcomes == {"a": "ok", "b": "cancelled"}
    assert len(outside.closed) == 2


def run_some(started: Any, enough_groups: int, *plan: Any, **options: Any) -> Any:
    """Dispatch a wave, and wait until enough groups have ended."""
    started.dispatch(*plan, **options)
    return started.wait(enough_groups=enough_groups)


def test_the_stragglers_of_a_full_wave_are_carried_over_and_end_once(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve", reward="scores:one", concurrency=6)
    slow = [task("slow", sleeps=6), task("a"), task("b")]
    first = run_some(started, 2, "train", 0, slow, 2, sampling={"temperature": 0.6})
    assert Counter(result.identity.task for result in first) == {"a": 2, "b": 2}
    assert sorted(outside.closed) == sorted(f"{each.identity.rollout}.1" for each in first)
    # a repeated plan starts nothing that still runs
    second = run_some(started, 1, "train", 1, [task("c")], 2, sampling={"temperature": 0.2})
    assert Counter((each.identity.wave, each.identity.task) for each in second) == {(1, "c"): 2}
    rest = started.run("train", 0, slow[:1], 2, sampling={"temperature": 0.6})
    assert [(each.identity.wave, each.identity.task) for each in rest] == [(0, "slow")] * 2
    everything = [*first, *second, *rest]
    assert {each.identity.attempt for each in everything} == {1}
    assert {each.outcome for each in everything} == {Outcome.OK}
    assert len({each.identity.rollout for each in everything}) == len(outside.closed) == 8
    closings = outside.wait_spans(8, name="ltrain.rollout")
    assert len(closings) == 8
    assert len(outside.spans(name="ltrain.rollout.dispatch")) == 8
    assert started.run("train", 2, [], 2, sampling={}) == []


def test_rollouts_of_a_full_wave_that_wait_are_carried_over_too(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve", concurrency=1)
    tasks = [task(name) for name in "abcd"]
    first = run_some(started, 1, "train", 0, tasks, 1, sampling={})
    rest = started.run("train", 1, [task("e")], 1, sampling={})
    order = [each.identity.task for each in [*first, *rest]]
    assert order == ["a", "b", "c", "d", "e"] and 1 <= len(first) < 4
    assert [each.identity.wave for each in rest] == [0] * (len(rest) - 1) + [1]


def test_a_finished_group_counts_towards_a_full_wave(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve")
    tasks = [task("a"), task("b", sleeps=30)]
    finished = {rollout_id("r", "train", 0, "a", 0)}
    results = run_some(started, 1, "train", 0, tasks, 1, sampling={}, finished=finished)
    assert results == [] and outside.calls == []


def test_carried_rollouts_are_cancelled_when_the_runner_ends(
    runner: Start, task: Make, outside: Any
) -> None:
    with runner("plain:solve") as started:
        tasks = [task("a"), task("b", sleeps=60)]
        run_some(started, 1, "train", 0, tasks, 1, sampling={})
    closings = outside.wait_spans(2, name="ltrain.rollout")
    outcomes = {
        s.attributes["ltrain.task.id"]: s.attributes["ltrain.rollout.outcome"] for s in closings
    }
    assert outcomes == {"a": "ok", "b": "cancelled"}
    assert len(outside.closed) == 2


def test_a_reward_that_fails_on_a_carried_result_is_judged_with_its_own_wave(
    runner: Start, task: Make, outside: Any
) -> None:
    started = runner("plain:solve", reward="scores:fails_on_some")
    tasks = [task("a"), task("c"), task("b", sleeps=4)]
    first = run_some(started, 2, "train", 0, tasks, 1, sampling={})
    (last,) = started.run("train", 1, [], 1, sampling={})
    assert {each.outcome for each in first} == {Outcome.OK}
    assert (last.identity.task, last.outcome) == ("b", Outcome.ERROR)


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        ("plain:sovle", "has no function 'sovle'. Did you mean 'plain:solve'"),
        ("absent:solve", "there is no such module in"),
        ("broken:solve", "RuntimeError: no such luck"),
    ],
)
def test_an_agent_that_cannot_be_imported_is_an_error_of_the_first_run(
    runner: Start, task: Make, agent: str, sentence: str
) -> None:
    with pytest.raises(BadReference, match=sentence.replace("(", r"\(")):
        runner(agent).run("train", 0, [task()], 1, sampling={})


def test_two_tasks_with_the_same_id_are_refused(runner: Start, task: Make) -> None:
    with pytest.raises(BadTasks, match="two tasks have the id 'a'"):
        runner("plain:solve").run("train", 0, [task("a"), task("a")], 1, sampling={})
