"""No agent gets another attempt, or is excluded, by failing on a task that it does badly.

A gateway before a fake policy server, a real runner, real workers and commands.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fake_vllm import FakeVllm
from tests.runners import make_runner
from tests.train.gateway.stage import SECRET, Stage

from ltrain_train.rollout import Runner, Task
from ltrain_train.rollout.rewards import RewardFailed
from ltrain_train.workers import Outcome, RolloutResult

AGENTS = Path(__file__).parent / "agents"
Start = Callable[..., Runner]


@pytest.fixture
def start(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "marks").mkdir()
    with ExitStack() as stack:

        def started(agent: str = "hostile_agents:solve", **settings: object) -> Runner:
            defaults = {
                "run": "r",
                "agent": agent,
                "reward": "hostile_agents:reward",
                "folder": AGENTS,
                "gateway": stage.url,
                "secret": SECRET,
                "policy": "policy",
                "home": tmp_path / "home",
                "workers": 1,
                "concurrency": 1,
                "timeout": 60.0,
                "environ": {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai"},
            }
            return stack.enter_context(make_runner(**{**defaults, **settings}))

        yield started


def tasks(folder: Path, *how: str) -> list[Task]:
    return [Task(id=one, input=f"{one} {folder / 'marks'}") for one in how]


def by_task(results: list[RolloutResult]) -> dict[str, RolloutResult]:
    return {str(result.identity.task): result for result in results}


def test_what_an_agent_does_to_itself_is_its_error_and_counts(start: Start, tmp_path: Path) -> None:
    ways = ["connect", "status", "prompt", "leave", "nan", "bytes", "bomb", "deep", "surrogate"]
    ways += ["broken", "garbage", "exit", "kill", "segfault", "abort"]
    results = by_task(start().run("train", 0, tasks(tmp_path, *ways), 1, sampling={}))
    tries = {name: (r.outcome.value, r.identity.attempt) for name, r in results.items()}
    own = {"broken": ("ok", 1), "garbage": ("ok", 1)}  # its result came all the same, and is bad
    assert tries == {**dict.fromkeys(ways, ("error", 1)), **own}
    assert results["broken"].rewards == results["garbage"].rewards == {"reward": 0.0}
    assert "fails on this request" not in results["connect"].reason
    assert results["kill"].reason.startswith("it ended its worker: kill(")
    assert results["segfault"].reason == "its worker died"
    assert "must be JSON" in results["nan"].reason


def test_an_agent_that_blocks_the_gateway_gets_no_other_attempt(
    start: Start, tmp_path: Path
) -> None:
    """The runner closes each attempt while the agent sends such requests, and closes in time."""
    ways = [
        f"{kind}@{to}"
        for kind in ("calls", "messages", "parts", "text")
        for to in ("own", "production")
    ]
    results = by_task(start().run("train", 0, tasks(tmp_path, *ways), 1, sampling={}))
    tries = {name: (r.outcome.value, r.identity.attempt) for name, r in results.items()}
    assert tries == dict.fromkeys(ways, ("error", 1))


def test_an_agent_cannot_say_that_its_attempt_was_an_outage(start: Start, tmp_path: Path) -> None:
    results = by_task(
        start().run("train", 0, tasks(tmp_path, "infra", "cancelled"), 1, sampling={})
    )
    for name in ("infra", "cancelled"):
        assert results[name].outcome is Outcome.ERROR
        assert results[name].reason == f"its worker sent the unknown outcome '{name}'"
        assert results[name].identity.attempt == 1


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("kills", "it ended its worker: kill("),
        ("terminates", "it ended its worker: kill("),
        ("crashes", "its worker died"),
    ],
)
def test_who_kills_the_worker_of_others_fails_and_they_come_to_their_end(
    start: Start, tmp_path: Path, how: str, reason: str
) -> None:
    runner = start(agent="hostile_agents:solve", concurrency=4)
    made = [Task(id=f"good-{n}", input=f"good {tmp_path / 'marks'}") for n in range(3)]
    killer = Task(id="killer", input=how)  # in each try
    results = by_task(runner.run("train", 0, [*made, killer], 1, sampling={}))
    assert {results[task.id].outcome for task in made} == {Outcome.OK}
    died = results["killer"]
    assert died.outcome is Outcome.ERROR
    assert died.reason.startswith(reason)
    assert died.identity.attempt in ((1, 2) if how == "crashes" else (1,))


@pytest.mark.parametrize(
    "command", ["kill -9 $$", "exit 137", "exit 1", "kill -SEGV $$", "ulimit -v 1000; python -c 1"]
)
def test_a_command_that_kills_itself_is_an_error(start: Start, command: str) -> None:
    runner = start(command, reward=None)
    (result,) = runner.run("train", 0, [Task(id="a", input="x")], 1, sampling={})
    assert (result.outcome, result.identity.attempt) == (Outcome.ERROR, 1), result.reason


def test_a_result_that_breaks_the_reward_function_counts(start: Start, tmp_path: Path) -> None:
    made = tasks(tmp_path, "unscorable") + [
        Task(id=f"good-{n}", input=f"good {tmp_path / 'marks'}") for n in range(2)
    ]
    results = by_task(start(concurrency=4).run("train", 0, made, 1, sampling={}))
    broke = results["unscorable"]
    assert (broke.outcome, broke.identity.attempt, broke.rewards) == (Outcome.ERROR, 1, {})
    assert "AttributeError" in broke.reason
    assert results["good-0"].rewards == {"reward": 1.0}


def test_a_reward_function_that_fails_on_most_ends_the_run(start: Start, tmp_path: Path) -> None:
    made = [Task(id=f"u-{n}", input=f"unscorable {tmp_path / 'marks'}") for n in range(2)]
    made.append(Task(id="good", input=f"good {tmp_path / 'marks'}"))
    with pytest.raises(RewardFailed, match="It failed on 2 results"):
        start(concurrency=4).run("train", 0, made, 1, sampling={})


def test_no_attempt_starts_while_the_policy_server_is_away(start: Start, stage: Stage) -> None:
    """The gateway holds calls, as while vLLM restarts; `test_outages` kills a policy server."""
    shut, over = threading.Event(), threading.Event()

    async def keep_shut() -> None:
        async with stage.publication.gate.shut("a test"):
            shut.set()
            while not over.is_set():
                await asyncio.sleep(0.01)

    def open_later() -> None:
        time.sleep(2)
        began.extend(span["name"] for span in stage.spans())
        over.set()

    asyncio.run_coroutine_threadsafe(keep_shut(), stage.loop)
    assert shut.wait(10)
    runner = start("python asks.py", reward=None, timeout=20.0)
    began: list[str] = []
    opener = threading.Thread(target=open_later)
    opener.start()
    (result,) = runner.run("train", 0, [Task(id="a", input="w3")], 1, sampling={})
    opener.join()
    assert result.outcome is Outcome.OK, result.reason
    assert (result.identity.attempt, began) == (1, [])


def test_an_outage_is_tried_again_and_an_agent_that_hides_it_too(
    start: Start, stage: Stage, vllm: FakeVllm
) -> None:
    vllm.sick = True
    runner = start("python asks.py || echo 7", reward=None)
    (result,) = runner.run("train", 0, [Task(id="a", input="w3")], 1, sampling={})
    assert (result.outcome, result.identity.attempt) == (Outcome.INFRA, 3)
    assert result.reason == "an outage left 1 call unanswered"
    vllm.sick = False
    (again,) = runner.run("train", 0, [Task(id="a", input="w3")], 1, sampling={})
    assert (again.outcome, again.identity.attempt) == (Outcome.OK, 4)
