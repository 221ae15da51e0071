"""An agent's process has its task without the gold, its own key, and no secret."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.runners import make_runner
from tests.security.served import Served, serving

from ltrain_collector.store import Store
from ltrain_instrument.attributes import ROLLOUT_ID, RUN_ID
from ltrain_train.rollout import Runner, Task
from ltrain_train.rollout.store_keys import StoreKeys
from ltrain_train.workers import Outcome

AGENTS = Path(__file__).parent / "agents"
SECRET = "the gateway's secret of 32 characters"
GOLD = Task.model_validate({"id": "a", "input": "what?", "domain": "d", "gold": "forty-two"})
LOOK = "python -c 'import hostile_agents as h, json; print(json.dumps(h.look(h.TASK, None)))'"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("LTRAIN_GATEWAY_SECRET", SECRET)
    monkeypatch.setenv("PYTHONPATH", str(AGENTS))
    with serving(tmp_path / "home", monkeypatch) as served:
        yield served


@pytest.fixture
def start(served: Served) -> Iterator[Callable[..., Runner]]:
    with ExitStack() as stack:

        def started(agent: str, **settings: Any) -> Runner:
            defaults = {
                "run": "r",
                "agent": agent,
                "reward": None,
                "folder": AGENTS,
                "gateway": served.gateway.url,
                "secret": (served.home / "store.secret").read_text().strip(),
                "policy": "policy",
                "home": served.home,
                "workers": 1,
                "concurrency": 2,
                "timeout": 60.0,
                "environ": {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai"},
            }
            return stack.enter_context(make_runner(**{**defaults, **settings}))

        yield started


def result_of(runner: Runner, folder: Path) -> Any:
    """Run the task once, and return the agent's result, which the reward function saved."""
    (result,) = runner.run("train", 0, [GOLD], 1, sampling={})
    assert result.outcome is Outcome.OK, result.reason
    return json.loads((folder / "kept.json").read_text())


@pytest.mark.parametrize("agent", ["hostile_agents:look", LOOK], ids=["function", "command"])
def test_an_agent_sees_no_gold_and_no_secret(
    start: Callable[..., Runner],
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    agent: str,
) -> None:
    monkeypatch.setenv("KEPT", str(tmp_path / "kept.json"))
    monkeypatch.setenv("LTRAIN_REWARD_KEY", "the key of the judge")
    monkeypatch.setenv("PROVIDER_KEY", "the key of another model")
    started = start(agent, reward="hostile_agents:keep", secrets=["PROVIDER_KEY"])
    found = result_of(started, tmp_path)
    assert found["task"] == {"id": "a", "domain": "d", "input": "what?"}
    assert found["handed"] in (None, found["task"])  # a command's is in LTRAIN_TASK
    everything = json.dumps(found)
    secrets = [SECRET, (served.home / "store.secret").read_text().strip(), served.up.dsn]
    for one in ("forty-two", "the key of", *secrets):
        assert one not in everything
    assert not {"LTRAIN_STORE", "LTRAIN_STORE_SECRET", "LTRAIN_GATEWAY_SECRET"} & set(
        found["environ"]
    )
    spool = Path(found["environ"]["LTRAIN_HOME"])
    assert spool.parent == served.home.resolve() / "agents"
    scheme, _, key = found["environ"]["OTEL_EXPORTER_OTLP_HEADERS"].partition("%20")
    claims = json.loads(_unpacked(key.split(".")[1]))
    assert (scheme, claims["kind"]) == ("Authorization=Bearer", "ingest")
    assert claims["identity"][RUN_ID] == "r"
    assert (ROLLOUT_ID in claims["identity"]) is (agent == LOOK)


def test_a_recipe_may_show_more_of_the_task(start: Callable[..., Runner]) -> None:
    reward = "hostile_agents:gold"
    for sees, value in ((("input",), 0.0), (("input", "gold"), 1.0)):
        runner = start("hostile_agents:look", reward=reward, agent_sees=sees, run=f"r{value}")
        (result,) = runner.run("train", 0, [GOLD], 1, sampling={})
        assert result.rewards == {"reward": value}


@pytest.mark.parametrize(
    "agent",
    [
        "hostile_agents:forge",
        "python -c 'import hostile_agents as h, json; print(json.dumps(h.forge(h.TASK, None)))'",
    ],
    ids=["function", "command"],
)
def test_with_what_it_finds_an_agent_forges_nothing_in_a_store_without_keys(
    start: Callable[..., Runner],
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    agent: str,
) -> None:
    monkeypatch.setenv("KEPT", str(tmp_path / "kept.json"))
    runner = start(agent, reward="hostile_agents:keep")
    rejected = result_of(runner, tmp_path)
    assert rejected == {"thought": 0, "reward": 0, "close": 1, "another run": 1}
    runner.__exit__(None, None, None)
    with Store.open(served.up.dsn) as store:
        words = store.query("SELECT DISTINCT source FROM otel.evaluations WHERE value = 9")
        assert words["source"].to_list() == ["agent"]  # which a recipe takes only where it says so
        names = store.query("SELECT SpanName FROM otel.spans WHERE RunId = 'r'")["SpanName"]
        assert "thought" in set(names)
        assert store.query("SELECT count() AS n FROM otel.spans WHERE RunId = 'x'")["n"][0] == 0


def test_headers_of_other_kinds_stay_and_a_strangers_authorization_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LTRAIN_STORE", raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    name = "OTEL_EXPORTER_OTLP_HEADERS"
    assert StoreKeys.from_home(tmp_path, {name: "tenant=7"}) is None  # there is no store
    (tmp_path / "store").mkdir()
    keys = StoreKeys.from_home(tmp_path, {name: "tenant=7"})
    assert keys is not None
    assert str(keys.run_environment("r")[name]).startswith("tenant=7,Authorization=Bearer%20")
    assert StoreKeys.from_home(tmp_path, {name: "authorization=Basic%20a"}) is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.example:4318")
    assert StoreKeys.from_home(tmp_path, {}) is None


def test_a_collector_that_does_not_know_the_secret_is_not_sent_its_keys(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert StoreKeys.from_home(served.home, {}) is not None
    os.environ["LTRAIN_STORE_SECRET"] = "another secret of thirty-two characters"
    try:
        assert StoreKeys.from_home(served.home, {}) is None
    finally:
        del os.environ["LTRAIN_STORE_SECRET"]
    assert "refuses keys signed with this store's secret" in caplog.text


def _unpacked(part: str) -> bytes:
    from base64 import urlsafe_b64decode

    return urlsafe_b64decode(part + "=" * (-len(part) % 4))
