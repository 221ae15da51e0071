"""A candidate answers calls of users in the shadow: nobody sees, awaits or trains its answers."""

import time
from typing import Any

import pytest
from tests.train.gateway.test_canary import (
    WHO,
    adapters,
    ask,
    canary,
    resume,
    retire,
    stages,
    traced,
)

from ltrain_transforms.deployment_file import Stage

__all__ = ["adapters"]  # a fixture


def shadow(stage: Any, share: float = 1.0) -> None:
    stage.client.deploy("policy", 2, Stage.SHADOW, share=share, **WHO)


def calls(stage: Any, count: int) -> list[dict[str, Any]]:
    """Return the attributes of calls, as soon as there are `count`, with their traces."""
    spans = [each for each in stage.wait_spans(count + 1) if each["name"] != "ltrain.deploy"]
    assert len(spans) == count
    return [{**each["attributes"], "trace": each["trace"]} for each in spans]


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_of_the_candidate_is_recorded_and_not_shown(
    adapters: Any, vllm: Any, stream: bool
) -> None:
    shadow(adapters)
    answer = adapters.ask("weights", identity=None, stream=stream, headers=traced(7))
    assert "w0" in answer.text and "w2" not in answer.text
    seen, unseen = calls(adapters, 2)
    assert (seen["ltrain.mode"], unseen["ltrain.mode"]) == ("prod", "shadow")
    assert (seen["ltrain.policy.version"], unseen["ltrain.policy.version"]) == (0, 2)
    assert "w2" in unseen["gen_ai.output.messages"] and unseen["ltrain.response_logprobs"]
    arms = [each["ltrain.experiment.arm"] for each in (seen, unseen)]
    assert arms == ["current", "candidate"]
    for same in ("ltrain.experiment.id", "ltrain.experiment.unit", "gen_ai.input.messages"):
        assert seen[same] == unseen[same]
    assert unseen["trace"] != seen["trace"] == f"{7:032x}"
    assert unseen["ltrain.experiment.shadowed"] == seen["trace"]
    assert [request["model"] for request in vllm.requests] == ["policy", "policy@2"]


def test_the_user_does_not_wait_for_it_and_it_answers_one_call_at_a_time(
    adapters: Any, vllm: Any
) -> None:
    shadow(adapters)
    vllm.delays = (0.0, 2.0)
    began = time.monotonic()
    assert [ask(adapters, headers=traced(number)) for number in (1, 2, 3)] == ["w0"] * 3
    assert time.monotonic() - began < 2
    found = calls(adapters, 4)
    assert sum("ltrain.experiment.id" in each for each in found) == 2
    vllm.delays = (0.0, 0.0)
    ask(adapters, headers=traced(4))
    assert sum("ltrain.experiment.id" in each for each in calls(adapters, 6)) == 4


def test_a_share_of_the_conversations_is_answered(adapters: Any) -> None:
    shadow(adapters, share=0.0)
    ask(adapters)
    canary(adapters)
    retire(adapters)
    assert [stage for _, stage, _ in stages(adapters)] == ["shadow", "canary", "retired"]
    assert not any("ltrain.experiment.id" in each["attributes"] for each in adapters.spans())


def test_a_failure_in_the_shadow_is_the_candidates(adapters: Any, vllm: Any) -> None:
    shadow(adapters)
    vllm.faulty.add("policy@2")
    assert ask(adapters) == "w0"
    seen, unseen = calls(adapters, 2)
    assert "error.type" not in seen and unseen["error.type"] == "400"
    assert "ltrain.experiment.fallback" not in unseen


def test_rollouts_have_no_shadow(adapters: Any, vllm: Any) -> None:
    shadow(adapters)
    adapters.ask("weights")
    assert len(vllm.requests) == 1


def test_a_restarted_gateway_goes_on_in_the_shadow(adapters: Any) -> None:
    shadow(adapters)
    with adapters.restarted().running() as later:
        resume(later)
        assert ask(later) == "w0"
        assert [each["ltrain.policy.version"] for each in calls(later, 2)] == [0, 2]
