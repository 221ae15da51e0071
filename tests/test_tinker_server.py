"""Tests of the fake server of the Tinker API with the real SDK."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.tinker_server import TinkerServer

from ltrain_train.overlays import TINKER

TINKER.add()
import tinker  # noqa: E402
from tinker import types  # noqa: E402

IDS, PROMPT = [1, 2, 3, 4, 5], 2


@pytest.fixture(autouse=True)
def without_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")


@pytest.fixture
def server() -> Iterator[TinkerServer]:
    with TinkerServer() as server:
        yield server


def service(server: TinkerServer) -> Any:
    return tinker.ServiceClient(base_url=server.url, api_key="tml-test")


def row(advantage: float, log_probs: list[float] | None = None) -> Any:
    zeros, count = [0.0] * (PROMPT - 1), len(IDS) - PROMPT
    inputs = {
        "target_tokens": IDS[1:],
        "weights": zeros + [1.0] * count,
        "advantages": zeros + [advantage] * count,
        "logprobs": zeros + (log_probs or [0.0] * count),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(IDS[:-1]), loss_fn_inputs=inputs)


def sums(output: Any) -> list[float]:
    return [sum(each["logprobs"].data[PROMPT - 1 :]) for each in output.loss_fn_outputs]


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "cross_entropy"])
def test_an_update_makes_rewarded_tokens_likelier(server: TinkerServer, loss: str) -> None:
    run = service(server).create_lora_training_client("tiny", rank=4)
    [before] = sums(run.forward([row(1.0)], "cross_entropy").result())
    log_probs = run.forward([row(1.0)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    old = log_probs.data[PROMPT - 1 :]
    run.forward_backward([row(1.0, old)], loss).result()
    metrics = run.optim_step(types.AdamParams(learning_rate=0.1)).result().metrics
    [after] = sums(run.forward([row(1.0)], "cross_entropy").result())
    assert after > before and metrics["skyrl.ai/grad_norm"] > 0
    assert server.keys == {"tml-test"}


def test_the_gradient_is_that_of_the_loss(server: TinkerServer) -> None:
    run = service(server).create_lora_training_client("tiny", rank=4)
    run.forward_backward([row(1.0), row(-2.0)], "importance_sampling").result()
    [adapter] = server.adapters.values()
    gradient, size, place = adapter.gradient, 1e-5, (2, 3)

    def loss() -> float:
        outputs = run.forward([row(1.0), row(-2.0)], "importance_sampling").result().loss_fn_outputs
        return sum(sum(each["elementwise_loss"].data) for each in outputs)

    adapter.table[place] += size
    above = loss()
    adapter.table[place] -= 2 * size
    assert gradient[place] == pytest.approx((above - loss()) / (2 * size), rel=0.02)


@pytest.mark.parametrize(("sum_of_tokens", "ratio"), [(True, 2.0), (False, 1.0)])
def test_the_aggregation_is_a_sum_or_a_mean(sum_of_tokens: bool, ratio: float) -> None:
    with TinkerServer(sums=sum_of_tokens) as server:
        run = service(server).create_lora_training_client("tiny", rank=4)
        norms = []
        for rows in ([row(1.0)], [row(1.0)] * 2):
            run.forward_backward(rows, "importance_sampling").result()
            step = run.optim_step(types.AdamParams(learning_rate=0.0)).result()
            norms.append(step.metrics["skyrl.ai/grad_norm"])
    assert norms[1] / norms[0] == pytest.approx(ratio)


def test_a_saved_run_continues_and_samples(server: TinkerServer) -> None:
    client = service(server)
    run = client.create_lora_training_client("tiny", rank=4)
    run.forward_backward([row(1.0)], "cross_entropy").result()
    run.optim_step(types.AdamParams(learning_rate=5.0)).result()
    path = run.save_state("one").result().path
    again = client.create_training_client_from_state_with_optimizer(path)
    assert sums(again.forward([row(1.0)], "cross_entropy").result()) == pytest.approx(
        sums(run.forward([row(1.0)], "cross_entropy").result())
    )
    sampler = client.create_sampling_client(run.save_weights_for_sampler("two").result().path)
    options = types.SamplingParams(max_tokens=3, temperature=1.0, stop=[5])
    [answer] = sampler.sample(types.ModelInput.from_ints([1, 2]), 1, options).result().sequences
    assert (list(answer.tokens), answer.stop_reason) == (IDS[2:], "stop")
    [_, *known] = sampler.compute_logprobs(types.ModelInput.from_ints(IDS)).result()
    assert known[1:] == pytest.approx(answer.logprobs)


@pytest.mark.parametrize(("fault", "steps"), [(429, 1), ("vanish", 1), ("forget", 1)])
def test_a_request_that_fails_is_made_once(
    server: TinkerServer, fault: int | str, steps: int
) -> None:
    run = service(server).create_lora_training_client("tiny", rank=4)
    run.forward_backward([row(1.0)], "cross_entropy").result()
    server.faults["optim_step"] = [fault]
    run.optim_step(types.AdamParams(learning_rate=0.1)).result()
    assert server.names("optim_step") == ["optim_step"] * steps
    assert np.isfinite(next(iter(server.adapters.values())).table).all()


def test_a_lost_run_is_not_found(server: TinkerServer) -> None:
    run = service(server).create_lora_training_client("tiny", rank=4)
    server.lose_runs()
    with pytest.raises(tinker.NotFoundError):
        run.forward([row(1.0)], "cross_entropy").result()


def test_sessions_end_with_their_server() -> None:
    with TinkerServer() as server:
        session = service(server).holder._session_heartbeat_task
        assert not session.done()
    assert session.done()
