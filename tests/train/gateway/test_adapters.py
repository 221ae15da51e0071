"""Adapters are published while calls run, attempts stay with their version, servers have limits."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ltrain_instrument.identity import Identity
from ltrain_train.gateway.connection import GatewayRefused
from ltrain_train.gateway.serving.adapter_trial import Trial, measure_adapter
from ltrain_train.gateway.serving.upstream import Upstream
from ltrain_train.publishing.retention import prune_versions


@pytest.fixture
def adapters(stage: Any, write_adapter: Any, tmp_path: Path) -> Any:
    """The stage with versions 2 to 6, which are adapters of version 0."""
    for number in range(2, 7):
        stage.policies.add("policy", write_adapter(tmp_path / f"a{number}", number), parent=0)
    return stage


def attempt(stage: Any, rollout: str, **claims: Any) -> Any:
    """Return a function that calls the policy as one attempt, and returns the recorded version."""
    identity = replace(stage.identity, rollout=rollout)
    key = stage.key(identity, **claims)

    def ask(words: str = "weights", **body: Any) -> Any:
        return stage.ask(words, identity=identity, key=key, **body)

    ask.identity, ask.key = identity, key  # type: ignore[attr-defined]
    return ask


def version_of(response: Any) -> str:
    """Return what the fake server says of the version that answered."""
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def loads(vllm: Any) -> list[str]:
    return [body["lora_name"] for path, body in vllm.admin if path == "/v1/load_lora_adapter"]


def test_an_adapter_is_published_without_a_wait(adapters: Any, vllm: Any) -> None:
    vllm.weights = "policy/v0"
    assert adapters.client.load("policy", 2) == 0.0
    assert vllm.adapters == {"policy@2": str(adapters.policies.path("policy", 2))}
    assert adapters.policies.current("policy") == 2
    response = attempt(adapters, "r1")()
    assert (version_of(response), response.json()["model"]) == ("w2", "policy")
    for event in attempt(adapters, "r2")(stream=True).text.split("\n\n"):
        assert '"model": "policy@2"' not in event and "policy@2" not in event
    spans = [span["attributes"] for span in adapters.spans()]
    assert [each["ltrain.policy.version"] for each in spans] == [2, 2]
    assert adapters.log_lines == ["serving policy v2, previously v0"]
    assert [path for path, _ in vllm.admin] == ["/v1/load_lora_adapter"]
    assert adapters.publication.gate.shut_count == 0


def test_calls_in_flight_and_attempts_keep_their_version(adapters: Any, vllm: Any) -> None:
    vllm.weights = "policy/v0"
    at_base, at_two = attempt(adapters, "r0"), attempt(adapters, "r2")
    assert version_of(at_base()) == "w0"
    adapters.client.load("policy", 2)
    assert version_of(at_two()) == "w2"
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(at_two, "slow weights")
        while not adapters.publication.gate.in_flight:
            time.sleep(0.01)
        adapters.client.load("policy", 3)
        assert not slow.done()
        assert version_of(attempt(adapters, "r3")()) == "w3"
        assert version_of(slow.result()) == "w2"
    assert (version_of(at_base()), version_of(at_two())) == ("w0", "w2")
    assert version_of(adapters.ask("weights", identity=None)) == "w3"


def test_the_oldest_adapter_that_nobody_needs_makes_room(adapters: Any, vllm: Any) -> None:
    vllm.weights = "policy/v0"
    pinned, loose = attempt(adapters, "r2", pin_version=True), attempt(adapters, "r3")
    for number, ask in ((2, pinned), (3, loose), (4, None)):
        adapters.client.load("policy", number)
        if ask:
            ask()
    adapters.client.load("policy", 5)  # the fourth: version 3 goes, since 2 is pinned
    assert sorted(vllm.adapters) == ["policy@2", "policy@4", "policy@5"]
    assert (version_of(pinned()), version_of(loose())) == ("w2", "w5")
    adapters.client.close_attempt(pinned.identity, pinned.key)
    adapters.client.load("policy", 6)
    assert sorted(vllm.adapters) == ["policy@4", "policy@5", "policy@6"]


def test_a_server_with_fewer_places_loses_the_oldest(adapters: Any, vllm: Any) -> None:
    vllm.places = 2
    for version in (2, 3, 4):
        adapters.client.load("policy", version)
    assert list(vllm.adapters) == ["policy@3", "policy@4"]
    vllm.places = 1
    with pytest.raises(GatewayRefused, match="all places are taken"):
        adapters.client.load("policy", 5)
    assert version_of(adapters.ask("weights", identity=None)) == "w4"


def test_more_versions_than_the_server_holds_are_refused(adapters: Any, vllm: Any) -> None:
    vllm.weights = "policy/v0"
    asks = []
    for number in (2, 3, 4):
        adapters.client.load("policy", number)
        asks.append(attempt(adapters, f"r{number}", pin_version=True))
        asks[-1]()
    sentence = (
        r"policy v5 cannot be loaded: the policy server holds 3 adapters at most, and .* each"
    )
    with pytest.raises(GatewayRefused, match=sentence):
        adapters.client.load("policy", 5)
    assert adapters.client.current_version("policy") == adapters.policies.current("policy") == 4
    assert [version_of(ask()) for ask in asks] == ["w2", "w3", "w4"]


def test_a_pinned_version_that_is_gone_is_an_outage_of_the_attempt(
    adapters: Any, vllm: Any
) -> None:
    vllm.weights = "policy/v0"
    pinned = attempt(adapters, "r0", pin_version=True)
    pinned()
    adapters.client.load("policy", 1)  # other weights
    response = pinned()
    assert response.status_code == 409
    message = response.json()["error"]["message"]
    assert message.startswith("The policy server does not hold version 0 of 'policy', to which")
    counts = adapters.client.close_attempt(pinned.identity, pinned.key)
    assert (counts.llm_calls, counts.failures) == (1, 1)
    failed = adapters.spans()[-2]
    assert failed["status"][1] == message
    assert failed["attributes"]["error.type"] == "version_gone"


def test_other_weights_remove_the_adapters_of_the_previous_ones(adapters: Any, vllm: Any) -> None:
    adapters.client.load("policy", 2)
    loose = attempt(adapters, "r2")
    assert version_of(loose()) == "w2"
    adapters.client.load("policy", 1)
    assert (vllm.weights, vllm.adapters) == ("policy/v1", {})
    assert version_of(loose()) == "w1"
    adapters.client.load("policy", 3)  # an adapter of version 0: its weights return first
    assert (vllm.weights, list(vllm.adapters)) == ("policy/v0", ["policy@3"])
    assert version_of(loose()) == "w3"


def test_a_refused_adapter_leaves_the_previous_version(adapters: Any, vllm: Any) -> None:
    vllm.weights, vllm.refuse_adapters = "policy/v0", 1
    with pytest.raises(GatewayRefused, match=r"refused POST /v1/load_lora_adapter with status 500"):
        adapters.client.load("policy", 2)
    assert adapters.client.current_version("policy") == adapters.policies.current("policy") == 0
    assert version_of(attempt(adapters, "r0")()) == "w0"
    adapters.client.load("policy", 2)


def test_a_held_version_is_not_removed(adapters: Any, vllm: Any) -> None:
    vllm.weights = "policy/v0"
    runs = adapters.home / "runs"
    adapters.client.load("policy", 2)
    pinned = attempt(adapters, "r2", pin_version=True)
    pinned()
    adapters.client.load("policy", 6)
    assert prune_versions(adapters.policies, "policy", runs, keep=1).versions == [1, 3, 4, 5]
    assert version_of(pinned()) == "w2"


def test_a_server_that_returns_has_its_adapters_again(adapters: Any, vllm: Any) -> None:
    vllm.weights = "policy/v0"
    adapters.client.load("policy", 2)
    vllm.weights, vllm.adapters = "default", {}  # its owner started it again
    adapters.client.load("policy", 2)
    assert (vllm.weights, list(vllm.adapters)) == ("policy/v0", ["policy@2"])
    assert version_of(attempt(adapters, "r2")()) == "w2"


def test_an_answer_of_another_model_is_a_failure(adapters: Any, vllm: Any) -> None:
    vllm.weights = "policy/v0"
    adapters.client.load("policy", 2)
    vllm.garbage = '{"model": "policy", "choices": []}'
    response = attempt(adapters, "r2")()
    assert response.status_code == 400
    assert "model 'policy' answered a call of 'policy@2'" in response.json()["error"]["message"]


def test_production_may_name_a_version(adapters: Any, vllm: Any) -> None:
    vllm.weights = "policy/v0"
    adapters.client.load("policy", 2)
    adapters.client.load("policy", 3)
    for number in (0, 2, 3):
        response = adapters.ask("weights", identity=None, model=f"policy@{number}")
        assert (version_of(response), response.json()["model"]) == (
            f"w{number}",
            f"policy@{number}",
        )
    response = adapters.ask("weights", identity=None, model="policy@5")
    assert response.status_code == 404
    assert "It holds: 0, 2, 3." in response.json()["error"]["message"]
    assert adapters.ask("w1", identity=None, model="policy@x").status_code == 404


def test_a_server_without_room_for_adapters_says_what_to_do(adapters: Any, vllm: Any) -> None:
    adapters.publication.server.adapters.limit = 0
    with pytest.raises(GatewayRefused, match=r"is a LoRA adapter, and .* takes none. Start"):
        adapters.client.load("policy", 2)


def test_no_call_waits_and_none_has_another_version_during_publications(
    adapters: Any, vllm: Any
) -> None:
    vllm.weights = "policy/v0"
    stop, gate = threading.Event(), adapters.publication.gate
    shut_before = gate.shut_count

    def keep_asking(name: int) -> list[tuple[str, Identity]]:
        answers: list[tuple[str, Identity]] = []
        while not stop.is_set():
            ask = attempt(adapters, f"r{name}-{len(answers)}")
            answers.append((version_of(ask()), ask.identity))
        return answers

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(keep_asking, name) for name in range(8)]
        for _ in range(4):
            for number in range(2, 7):
                assert adapters.client.load("policy", number) == 0.0
        stop.set()
        answers = {each.rollout: version for done in running for version, each in done.result()}
    recorded = {
        span["attributes"]["ltrain.rollout.id"]: span["attributes"]["ltrain.policy.version"]
        for span in adapters.spans()
        if span["name"].startswith("chat")
    }
    assert {rollout: f"w{version}" for rollout, version in recorded.items()} == answers
    assert len(set(answers.values())) > 1
    assert gate.shut_count == shut_before
    assert len(vllm.adapters) <= adapters.max_adapters


@pytest.mark.parametrize(
    ("without", "with_adapter", "choice"),
    [(1.0, 1.0, "adapter"), (0.9, 1.0, "adapter"), (1.0, 2.5, "merged"), (1.0, 0.5, "adapter")],
)
def test_the_choice_of_a_trial(without: float, with_adapter: float, choice: str) -> None:
    chosen = Trial(without, with_adapter).choice
    assert chosen.artifact == choice
    assert chosen.describe().startswith(f"publish = {choice}: with an adapter this server samples ")


async def _measure(url: str, weights: Path) -> Trial:
    upstream = Upstream(url, "policy")
    try:
        return await measure_adapter(upstream, weights, 4)
    finally:
        await upstream.close()


def test_a_trial_leaves_no_adapter(stage: Any, vllm: Any) -> None:
    trial = asyncio.run(_measure(vllm.url, stage.policies.path("policy", 0)))
    assert trial.without > 0 and trial.with_adapter > 0
    assert vllm.adapters == {}
    assert {each["model"] for each in vllm.requests} == {"policy", "ltrain-trial"}


@pytest.fixture
def shared(vllm: Any, tmp_path: Path, load: Any, write_model: Any, write_adapter: Any) -> Any:
    """A stage of two policies in one server; version 1 of `critic` is an adapter."""
    stage = load("stage").Stage(vllm.url, tmp_path / "home")
    for name in ("policy", "critic"):
        stage.policies.register(
            name, tmp_path / "model" if name == "critic" else write_model(tmp_path / "model")
        )
    stage.policies.add("critic", write_adapter(tmp_path / "adapter", 1))
    stage.policies.add("policy", write_model(tmp_path / "other", fill=9))
    stage.sharing = ("critic",)
    vllm.weights = "policy/v0"
    with stage.running():
        yield stage


def test_policies_share_a_server_as_adapters_of_its_weights(shared: Any, vllm: Any) -> None:
    ask = attempt(shared, "r1")
    assert version_of(ask(model="critic")) == version_of(ask(model="policy")) == "w0"
    shared.client.load("critic", 1)
    assert version_of(attempt(shared, "r2")(model="critic")) == "w1"
    assert version_of(attempt(shared, "r3")(model="whatever")) == "w0"  # the key's policy
    assert version_of(shared.ask("weights", identity=None, model="critic")) == "w1"
    recorded = [
        (span["attributes"]["ltrain.policy.name"], span["attributes"]["ltrain.policy.version"])
        for span in shared.spans()
    ]
    assert recorded == [("critic", 0), ("policy", 0), ("critic", 1), ("policy", 0), ("critic", 1)]
    listed = shared.http.get("/v1/models").json()["data"]
    assert [each["id"] for each in listed] == ["policy", "critic"]
    assert shared.http.get("/health").json()["policies"] == {"policy": 0, "critic": 1}
    with pytest.raises(GatewayRefused, match=r"policy v1 has other weights .* also serves critic"):
        shared.client.load("policy", 1)
    assert vllm.weights == "policy/v0"
    response = shared.ask("w1", identity=None, model="gpt-5")
    assert "Choose from: policy, critic." in response.json()["error"]["message"]
