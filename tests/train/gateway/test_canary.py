"""A candidate answers a share of production, whole conversations only, until it is taken back."""

import asyncio
import math
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import INVALID_SPAN

from ltrain_train.gateway.connection import GatewayRefused
from ltrain_train.gateway.conversations import Unit
from ltrain_train.gateway.serving import canary as serving_canary
from ltrain_train.gateway.serving.canary import Canary, RecentUnits
from ltrain_train.policy import Deployments
from ltrain_transforms.deployment_file import Deployment, Stage, read_deployments

WHO = {"by": "ada", "reason": "a test"}
TRACE = "00-{:032x}-00f067aa0ba902b7-01"


@pytest.fixture
def adapters(stage: Any, write_adapter: Any, vllm: Any, tmp_path: Path) -> Any:
    """The stage with versions 2 to 4, which are adapters of version 0, the current one."""
    for number in range(2, 5):
        stage.policies.add("policy", write_adapter(tmp_path / f"a{number}", number), parent=0)
    vllm.weights = "policy/v0"
    return stage


def canary(stage: Any, version: int = 2, share: float = 1.0) -> None:
    stage.client.deploy("policy", version, Stage.CANARY, share=share, **WHO)


def retire(stage: Any, version: int = 2) -> None:
    stage.client.deploy("policy", version, Stage.RETIRED, share=0.0, **WHO)


def promote(stage: Any, version: int = 2) -> None:
    stage.client.deploy("policy", version, Stage.CURRENT, share=0.0, **WHO)


def ask(stage: Any, **options: Any) -> str:
    """Return the weights that answer a call of production."""
    response = stage.ask("weights", identity=None, **options)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def calls(stage: Any) -> list[Any]:
    """Return the spans of calls."""
    return [each for each in stage.spans() if each["name"] != "ltrain.deploy"]


def traced(number: int) -> dict[str, str]:
    return {"traceparent": TRACE.format(number)}


def stages(stage: Any) -> list[tuple[int, str, float]]:
    found = read_deployments(stage.policies.directory / "policy")
    return [(each.version, each.stage, each.share) for each in found]


def test_a_candidate_answers_its_share_of_the_traces(adapters: Any) -> None:
    canary(adapters, share=0.3)
    answers = {number: ask(adapters, headers=traced(number)) for number in range(1, 101)}
    assert 15 <= Counter(answers.values())["w2"] <= 45
    again = {number: ask(adapters, headers=traced(number)) for number in range(1, 101)}
    assert again == answers
    spans = [each["attributes"] for each in calls(adapters)]
    arms = {each["ltrain.experiment.arm"]: each["ltrain.policy.version"] for each in spans}
    assert arms == {"candidate": 2, "current": 0}
    assert len({each["ltrain.experiment.unit"] for each in spans}) == 100
    assert len({each["ltrain.experiment.id"] for each in spans}) == 1


def test_more_share_moves_no_conversation_back(adapters: Any) -> None:
    canary(adapters, share=0.2)
    first = {number for number in range(1, 60) if ask(adapters, headers=traced(number)) == "w2"}
    canary(adapters, share=0.6)
    second = {number for number in range(1, 60) if ask(adapters, headers=traced(number)) == "w2"}
    assert first < second
    assert stages(adapters) == [(2, "canary", 0.2), (2, "canary", 0.6)]


def test_a_session_stays_with_its_version_over_traces(adapters: Any) -> None:
    canary(adapters, share=0.5)
    for session in range(12):
        headers = [traced(100 * session + turn) for turn in range(1, 5)]
        named = [each | {"x-session-id": f"session-{session}"} for each in headers]
        assert len({ask(adapters, headers=each) for each in named}) == 1


def test_a_conversation_that_began_before_stays_with_the_current_version(adapters: Any) -> None:
    messages = [{"role": "user", "content": "weights"}]
    first = adapters.post(
        "/v1/chat/completions", {"model": "policy", "messages": messages}, identity=None
    ).json()
    canary(adapters)
    messages += [first["choices"][0]["message"], {"role": "user", "content": "weights"}]
    for expected in ("w0", "w2"):
        sent = {"model": "policy", "messages": messages}
        answer = adapters.post("/v1/chat/completions", sent, identity=None).json()
        assert answer["choices"][0]["message"]["content"] == expected
        messages = [{"role": "user", "content": "weights"}]
    attributes = [each["attributes"] for each in calls(adapters)]
    assert ["ltrain.experiment.arm" in each for each in attributes] == [False, False, True]


@pytest.mark.parametrize("headers", [traced(7), traced(8) | {"x-session-id": "s"}])
def test_a_trace_or_session_that_is_under_way_stays_with_the_current_version(
    adapters: Any, headers: dict[str, str]
) -> None:
    assert ask(adapters, headers=headers) == "w0"
    canary(adapters)
    assert ask(adapters, headers=headers) == "w0"
    assert ask(adapters, headers=traced(9)) == "w2"


def test_only_the_latest_units_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_canary, "KNOWN_UNITS", 2)
    recent = RecentUnits()
    first, second, third = (Unit(name, math.inf) for name in "abc")
    began = [recent.date(each).began for each in (first, second, first, third)]
    assert began[0] == began[2] < began[3]
    assert recent.date(first).began == began[0]
    assert recent.date(second).began > began[1]


def test_a_retired_candidate_answers_nothing_more(adapters: Any) -> None:
    canary(adapters)
    headers = traced(1)
    assert ask(adapters, headers=headers) == "w2"
    retire(adapters)
    assert ask(adapters, headers=headers) == "w0"
    with pytest.raises(GatewayRefused, match="Version 2 of 'policy' is not a candidate"):
        promote(adapters)
    assert stages(adapters) == [(2, "canary", 1.0), (2, "retired", 0.0)]
    assert adapters.log_lines == [
        "policy v2 is a canary for 1 of the conversations",
        "policy v2 is retired",
    ]


def test_the_current_version_answers_in_place_of_a_failing_candidate(
    adapters: Any, vllm: Any
) -> None:
    canary(adapters)
    vllm.faulty.add("policy@2")
    assert ask(adapters) == "w0"
    [span] = calls(adapters)
    found = span["attributes"]
    assert found["ltrain.experiment.fallback"] is True
    assert (found["ltrain.experiment.arm"], found["ltrain.policy.version"]) == ("candidate", 0)
    assert [request["model"] for request in vllm.requests] == ["policy@2", "policy"]
    assert adapters.ask("weights", identity=None, model="policy@2").status_code == 400, "pinned"


def test_a_request_on_which_both_versions_fail_is_refused(adapters: Any, vllm: Any) -> None:
    canary(adapters)
    assert adapters.ask("boom", identity=None).status_code == 400
    assert [request["model"] for request in vllm.requests] == ["policy@2", "policy"]


def test_a_promoted_candidate_is_current(adapters: Any) -> None:
    canary(adapters, share=0.0)
    assert ask(adapters) == "w0"
    adapters.client.deploy("policy", 2, Stage.CURRENT, share=0.0, **WHO)
    assert ask(adapters) == "w2"
    assert adapters.policies.current("policy") == 2
    *_, last = read_deployments(adapters.policies.directory / "policy")
    assert (last.stage, last.by, last.reason) == (Stage.CURRENT, "ada", "a test")


def watch(stage: Any, version: int = 2, share: float = 0.5) -> None:
    canary(stage, version)
    stage.client.deploy("policy", version, Stage.WATCHED, share=share, **WHO)


@pytest.mark.parametrize("previous", [0, 3], ids=["full weights", "an adapter"])
def test_after_a_promotion_the_version_before_answers_a_share(adapters: Any, previous: int) -> None:
    adapters.client.load("policy", previous)
    before = ask(adapters, headers=traced(1))
    watch(adapters)
    assert adapters.policies.current("policy") == 2
    answers = Counter(ask(adapters, headers=traced(number)) for number in range(2, 102))
    assert set(answers) == {"w2", f"w{previous}"} and before == f"w{previous}"
    assert 25 < answers["w2"] < 75
    assert ask(adapters) in answers, "a conversation without a trace"
    rollout = adapters.ask("weights").json()["choices"][0]["message"]["content"]
    assert rollout == "w2", "it is not assigned"

    with adapters.restarted().running() as later:
        resume(later)
        again = Counter(ask(later, headers=traced(number)) for number in range(2, 102))
        assert again == answers
        retire(later)
        assert later.policies.current("policy") == previous
        assert {ask(later, headers=traced(number)) for number in range(2, 32)} == {f"w{previous}"}
    assert [stage for _, stage, _ in stages(adapters)] == ["canary", "watched", "retired"]


@pytest.mark.parametrize(
    ("act", "current", "last"),
    [
        (lambda stage: promote(stage), 2, "current"),
        (lambda stage: stage.client.freeze("policy", **WHO), 2, "current"),
        (lambda stage: stage.client.load("policy", 3), 3, "retired"),
    ],
    ids=["promoted", "frozen", "another version"],
)
def test_a_watch_ends(adapters: Any, act: Any, current: int, last: str) -> None:
    watch(adapters)
    act(adapters)
    assert {ask(adapters, headers=traced(number)) for number in range(1, 31)} == {f"w{current}"}
    assert adapters.policies.current("policy") == current
    assert stages(adapters)[-1][:2] == (2, last)


def test_a_kill_while_a_watched_version_is_taken_back_is_mended_at_the_start(
    adapters: Any,
) -> None:
    watch(adapters)
    adapters.policies.promote("policy", 0)
    with adapters.restarted().running() as later:
        resume(later)
        assert ask(later) == "w0"
        assert stages(later)[-1] == (2, "retired", 0.0)


@pytest.mark.parametrize("last", [Stage.CURRENT, Stage.RETIRED])
def test_a_step_that_is_sent_again_is_made_once(adapters: Any, last: Stage) -> None:
    canary(adapters)
    for _ in range(2):
        adapters.client.deploy("policy", 2, Stage.WATCHED, share=0.5, **WHO)
    for _ in range(2):
        adapters.client.deploy("policy", 2, last, share=0.0, **WHO)
    assert [stage for _, stage, _ in stages(adapters)] == ["canary", "watched", last]


def test_each_stage_is_a_span(adapters: Any) -> None:
    canary(adapters, share=0.25)
    [span] = [each for each in adapters.wait_spans(1) if each["name"] == "ltrain.deploy"]
    found = {key.removeprefix("ltrain."): value for key, value in span["attributes"].items()}
    assert found.pop("deploy.experiment")
    assert found == {
        "policy.name": "policy",
        "policy.version": 2,
        "deploy.stage": "canary",
        "deploy.share": 0.25,
        "deploy.by": "ada",
        "deploy.reason": "a test",
    }


@pytest.mark.parametrize(("published", "end"), [(2, "current"), (3, "retired")])
def test_a_version_that_becomes_current_by_hand_ends_the_trial(
    adapters: Any, published: int, end: str
) -> None:
    canary(adapters, share=0.5)
    adapters.client.load("policy", published)
    assert {ask(adapters, headers=traced(number)) for number in range(1, 20)} == {f"w{published}"}
    assert stages(adapters)[1:] == [(2, end, 0.0)]


def test_rollouts_and_pinned_calls_are_not_assigned(adapters: Any) -> None:
    canary(adapters)
    assert adapters.ask("weights").json()["choices"][0]["message"]["content"] == "w0"
    assert ask(adapters, model="policy@2") == "w2"
    assert not any("ltrain.experiment.id" in span["attributes"] for span in adapters.spans())


def test_one_candidate_at_a_time(adapters: Any) -> None:
    canary(adapters)
    with pytest.raises(GatewayRefused, match=r"Version 2 of 'policy' is a candidate already\."):
        canary(adapters, 3)
    retire(adapters)
    canary(adapters, 3)
    assert ask(adapters) == "w3"


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (1, "it is not an adapter of the weights in the policy server"),
        (0, "Version 0 of 'policy' is current already"),
        (9, "has no version 9"),
    ],
)
def test_a_version_that_cannot_be_a_candidate(adapters: Any, version: int, sentence: str) -> None:
    with pytest.raises(GatewayRefused, match=sentence):
        canary(adapters, version)
    assert stages(adapters) == []
    assert ask(adapters) == "w0"


@pytest.mark.parametrize("share", [1.5, -0.1])
def test_a_share_is_between_0_and_1(adapters: Any, share: float) -> None:
    with pytest.raises(GatewayRefused, match="share"):
        canary(adapters, share=share)


def test_the_candidate_is_not_dropped_for_another_adapter(adapters: Any, vllm: Any) -> None:
    canary(adapters)
    for version in (3, 4):
        with pytest.raises(GatewayRefused, match="not a candidate"):
            adapters.client.deploy("policy", version, Stage.CURRENT, share=0.0, **WHO)
        adapters.client.load("policy", version, current=False)
    assert "policy@2" in vllm.adapters and ask(adapters) == "w2"


def test_a_restarted_gateway_goes_on_with_the_trial(adapters: Any) -> None:
    canary(adapters, share=0.5)
    answers = [ask(adapters, headers=traced(number)) for number in range(1, 30)]
    with adapters.restarted().running() as later:
        resume(later)
        assert [ask(later, headers=traced(number)) for number in range(1, 30)] == answers


def resume(stage: Any) -> None:
    resuming = stage.publication.resume()
    asyncio.run_coroutine_threadsafe(resuming, stage.loop).result(30)


def test_a_kill_between_promotion_and_record_is_mended_at_the_start(adapters: Any) -> None:
    canary(adapters)
    adapters.policies.promote("policy", 2)
    with adapters.restarted().running() as later:
        resume(later)
        assert ask(later) == "w2"
        assert stages(later) == [(2, "canary", 1.0), (2, "current", 0.0)]


def test_a_candidate_that_cannot_be_held_at_the_start_retires(adapters: Any) -> None:
    canary(adapters)
    [weights] = (adapters.policies.path("policy", 2)).glob("*.safetensors")
    weights.chmod(0o600)
    weights.write_bytes(b"damaged")
    with adapters.restarted().running() as later:
        resume(later)
        assert ask(later) == "w0"
        assert stages(later)[1:] == [(2, "retired", 0.0)]
        assert "the trial of policy v2 has ended: v2 cannot be served: " in later.log_lines[-1]


def test_a_damaged_file_ends_the_trial_and_nothing_else(adapters: Any) -> None:
    (adapters.policies.directory / "policy" / "deployments.jsonl").write_text("{\n")
    resume(adapters)
    assert ask(adapters) == "w0"
    assert "Remove the line" in adapters.log_lines[-1]


def test_a_frozen_policy_keeps_its_version(adapters: Any) -> None:
    canary(adapters)
    began = time.monotonic()
    adapters.client.freeze("policy", **WHO)
    assert time.monotonic() - began < 1
    assert ask(adapters) == "w0"
    assert stages(adapters)[1:] == [(2, "retired", 0.0)]
    sentence = r"frozen by ada since .* UTC: a test\. .*`ltrain policy unfreeze policy`"
    for act in (lambda: canary(adapters, 3), lambda: adapters.client.load("policy", 3)):
        with pytest.raises(GatewayRefused, match=sentence):
            act()
    assert Deployments(adapters.policies, "policy").thaw()
    adapters.client.load("policy", 3)
    assert ask(adapters) == "w3"


def test_shares_of_assigned_units() -> None:
    canary = Canary("policy", Deployment.begin(7, 0.1, by="ada"))
    units = (Unit(f"u{number}", time.time()) for number in range(20_000))
    counts = Counter(canary.assign(unit, INVALID_SPAN).version for unit in units)
    expected = 20_000 * 0.1
    error = (counts[7] - expected) ** 2
    assert error * (1 / expected + 1 / (20_000 - expected)) < 10.83  # chi-square, p = 0.001


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_freeze_waits_for_no_load_and_outlives_it(adapters: Any, by_hand: bool) -> None:
    began, ended = threading.Event(), threading.Event()

    async def own_gate() -> None:
        async with adapters.publication.gate.owned():  # as a load does
            began.set()
            await asyncio.to_thread(ended.wait, 30)

    owning = asyncio.run_coroutine_threadsafe(own_gate(), adapters.loop)
    assert began.wait(30)
    with ThreadPoolExecutor() as pool:
        act = partial(adapters.client.load, "policy") if by_hand else partial(canary, adapters)
        waiting = pool.submit(act, 2)
        while not adapters.publication.gate._owner._waiters:
            time.sleep(0.01)
        adapters.client.freeze("policy", **WHO)
        assert not waiting.done()
        ended.set()
        with pytest.raises(GatewayRefused, match="frozen by ada"):
            waiting.result(30)
    owning.result(30)
    assert ask(adapters) == "w0" and stages(adapters) == []
