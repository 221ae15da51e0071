"""Which servers the policies of a gateway have, and what learners publish to them."""

from pathlib import Path
from typing import Any

import pytest

from ltrain_train.gateway.serving import plan
from ltrain_train.gateway.serving.plan import (
    AdapterOptions,
    BadUpstream,
    choose_untried,
    parse_upstreams,
    plan_servers,
)
from ltrain_train.policy import Policies
from ltrain_transforms.artifacts import Publish

NAMES = ("solver", "critic")
SHARED, OWN = "http://10.0.0.5:8000/v1?key=a=b", "https://10.0.0.6"


@pytest.mark.parametrize(
    ("texts", "upstreams"),
    [
        ([], {}),
        ([SHARED], {"solver": SHARED, "critic": SHARED}),
        ([f"critic={OWN}"], {"critic": OWN}),
        ([f"critic={OWN}", SHARED], {"solver": SHARED, "critic": OWN}),
        ([f"critic={OWN}", f"solver={SHARED}"], {"solver": SHARED, "critic": OWN}),
    ],
)
def test_a_policy_has_its_own_upstream_or_that_of_all_others(
    texts: list[str], upstreams: dict[str, str]
) -> None:
    assert parse_upstreams(texts, NAMES) == upstreams


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["10.0.0.5:8000"], "'10.0.0.5:8000' is no URL"),
        (["critic=10.0.0.5"], "'10.0.0.5' is no URL"),
        ([f"judge={OWN}"], "serves no policy 'judge'. Choose from: solver, critic"),
        ([f"critic={OWN}", f"critic={SHARED}"], "Two --upstream name a server of policy 'critic'"),
        ([OWN, SHARED], "several servers for all policies"),
    ],
)
def test_a_wrong_upstream_is_refused(texts: list[str], sentence: str) -> None:
    with pytest.raises(BadUpstream) as refused:
        parse_upstreams(texts, NAMES)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("publish", "rank", "gpu", "upstreams", "artifact", "vllm_rank"),
    [
        ("auto", 8, False, {}, "merged", 0),
        ("auto", 8, True, {}, None, 8),
        ("auto", 8, False, {"solver": OWN}, None, 8),  # its device is not known
        ("auto", 0, True, {}, "merged", 0),
        ("adapter", 8, False, {}, "adapter", 8),
        ("merged", 8, True, {}, "merged", 0),
    ],
)
def test_a_trial_is_made_where_an_adapter_may_be_fast(
    tmp_path: Path,
    write_model: Any,
    monkeypatch: pytest.MonkeyPatch,
    publish: Publish,
    rank: int,
    gpu: bool,
    upstreams: dict[str, str],
    artifact: str | None,
    vllm_rank: int,
) -> None:
    monkeypatch.setattr(plan, "CONTROL_DEVICE", tmp_path if gpu else tmp_path / "none")
    policies = Policies(tmp_path / "home")
    policies.register("solver", write_model(tmp_path / "model"))
    adapters = AdapterOptions(publish=publish, lora_rank=rank, max_adapters=2)
    servers = plan_servers(policies, ("solver",), adapters, upstreams)
    choice = choose_untried(servers, adapters)
    assert (choice and choice.artifact) == artifact
    assert [server.rank for server in servers] == [vllm_rank]


def test_policies_that_share_weights_publish_adapters_on_a_cpu_too(
    tmp_path: Path, write_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "CONTROL_DEVICE", tmp_path / "none")
    policies = Policies(tmp_path / "home")
    model = write_model(tmp_path / "model")
    for name in NAMES:
        policies.register(name, model)
    policies.register("other", write_model(tmp_path / "other", fill=9))
    adapters = AdapterOptions(publish="auto", lora_rank=8, max_adapters=2)
    servers = plan_servers(policies, ("other", *NAMES), adapters, {})
    choice = choose_untried(servers, adapters)
    assert choice is not None
    assert choice.describe() == f"publish = adapter: {plan.SHARED}"
    assert [server.rank for server in servers] == [8, 8]
