"""Memory and data types of models whose weight files have only their headers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.train.gpus import install_nvidia_smi, use_programs

from ltrain_instrument.instrumentors import Finding, State
from ltrain_train.errors import BadModel
from ltrain_train.policy import fast_dtype
from ltrain_train.runs.gpu_shares import divide
from ltrain_train.runs.plan import Plan, make_plan
from ltrain_train.runs.resources import (
    _gpu_places,
    check_dtypes,
    check_memory,
    check_ways,
    machine_bytes,
)

RECIPE = """
policy = [{ name = "p" }]
reward = [{ name = "score", evaluation = "reward" }]

[rollout]
tasks = "tasks.jsonl"
agent = "agent:solve"
reward = "agent:score"
"""


def write_model(folder: Path, side: int, **config: Any) -> Path:
    """Write a model of one square matrix, without its bytes."""
    folder.mkdir()
    header = {"w": {"dtype": "BF16", "shape": [side, side], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def plan_of(tmp_path: Path, text: str = "") -> Plan:
    recipe = tmp_path / "ltrain.toml"
    recipe.write_text(RECIPE + text)
    return make_plan(recipe, model=None, updates=None)


def places(plan: Plan, side: int, folder: Path) -> list[Finding]:
    return list(check_memory(plan, {"p": write_model(folder, side)}))


def test_a_model_that_cannot_fit_is_a_fault_with_its_numbers(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[train]\ndtype = "bf16"\nlora_rank = 1\n')
    [found] = places(plan, 1_000_000, tmp_path / "model")
    assert found.state is State.FAULT
    # 10^12 weights: 2 bytes in vLLM, 4 in the learner; the adapter has 2 * 10^6 weights
    size = machine_bytes() / 1e9
    assert found.detail == (
        f"the models need at least 6001.1 GB of the {size:.1f} of this machine: vLLM's weights "
        "2000.0, its KV cache 1.1, learner 4000.0"
    )
    assert found.fix == "Use a smaller model, or train an adapter: train.lora_rank."


@pytest.mark.parametrize(
    ("text", "learner"),
    [
        ("", 0.04),
        ("lora_rank = 0", 0.16),
        ("lora_rank = 0\nkl_coefficient = 0.1", 0.20),
        ("kl_coefficient = 0.1", 0.04),
    ],
    ids=["adapter", "all weights", "reference", "its own reference"],
)
def test_what_a_learner_holds(tmp_path: Path, text: str, learner: float) -> None:
    plan = plan_of(tmp_path, f'[train]\ndtype = "bf16"\n{text}\n[serve]\nupstream = "http://x"\n')
    [found] = places(plan, 3162, tmp_path / "model")  # 10^7 weights
    assert found.state is State.OK
    assert found.detail.endswith(f"learner {learner:.1f}")


def test_the_demos_model_fits(tmp_path: Path) -> None:
    [found] = places(plan_of(tmp_path), 11_600, tmp_path / "model")  # 135 million weights
    assert found.state is State.OK


def test_a_container_has_its_limit(tmp_path: Path) -> None:
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = tmp_path / "memory.max"
    assert machine_bytes(limit) == installed
    limit.write_text("max\n")
    assert machine_bytes(limit) == installed
    limit.write_text("1000\n")
    assert machine_bytes(limit) == 1000


def test_each_part_of_a_gpu_must_hold_what_it_needs() -> None:
    needs: dict[str, Any] = {"vllm_needs": 6 << 30, "learner_needs": 20 << 30, "token": 1 << 20}
    options: dict[str, Any] = {"gpus": (), "share": None, "tokens": None}

    def findings(total: int, **changed: Any) -> list[Finding]:
        shares = divide(total << 30, **(needs | options | changed))
        return [place.finding() for place in _gpu_places(shares)]

    server, learner = findings(40)
    assert server.detail == (
        "vLLM needs about 6.4 GB of the 6.4 of its part of the GPU: weights, cache and work 6.4"
    )
    assert "its part of the GPU: model 21.5, 11,264 tokens at once 11.8" in learner.detail
    server, learner = findings(24)
    assert (server.state, learner.state) == (State.OK, State.FAULT)
    assert "train.lora_rank" in learner.fix
    server, learner = findings(40, share=0.1, tokens=30_000)
    assert (server.state, learner.state) == (State.FAULT, State.FAULT)
    assert "serve.max_model_len" in server.fix
    assert "train.tokens_per_micro_batch" in learner.fix
    server, learner = findings(30, swap=True)
    assert "of the 29.0 of the GPU in its turn: weights, cache and work 6.4" in server.detail
    assert (server.state, learner.state) == (State.OK, State.OK)
    assert len(findings(40, vllm_needs=0)) == 1
    assert list(_gpu_places(None)) == []


def test_a_gpu_that_others_use_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ltrain_train.runs.resources.is_usable", lambda: True)
    use_programs(tmp_path / "bin", monkeypatch)
    models = {"p": write_model(tmp_path / "model", 10)}
    for free, notes in ((81_000, 0), (50_000, 1)):
        install_nvidia_smi(tmp_path / "bin", f"H100, 580.1, {free}, 81559")
        found = list(check_memory(plan_of(tmp_path), models))
        assert [one.state for one in found] == [State.NOTE] * notes
    assert found[0].detail == "processes use 33.1 GB of the GPU already"


def test_what_leaves_the_gpu_must_fit_into_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("plan", "resources"):
        monkeypatch.setattr(f"ltrain_train.runs.{module}.is_usable", lambda: True)
    use_programs(install_nvidia_smi(tmp_path / "bin", "H100, 580.1, 81559, 81559"), monkeypatch)
    write_model(tmp_path / "model", 3162)  # 10^7 weights: 2 bytes in vLLM, 16 in the learner
    recipe = tmp_path / "ltrain.toml"
    text = RECIPE.replace('name = "p"', 'name = "p", model = "model"')
    recipe.write_text(f'{text}\n[train]\ndtype = "bf16"\nlora_rank = 0\ncolocate = "swap"\n')
    plan = make_plan(recipe, model=None, updates=None)
    *_, machine = check_memory(plan, plan.models())
    expected = "what has left the GPU needs about 0.2 GB of the "
    assert machine.detail.startswith(expected)
    assert machine.detail.endswith("of this machine: learner 0.2, vLLM's weights 0.0")
    split = make_plan(recipe, model=None, updates=None, once=True)
    notes = [each.detail for each in check_memory(split, plan.models())]
    assert any("has no effect" in note for note in notes)


def test_what_each_rank_on_a_cluster_needs(tmp_path: Path) -> None:
    text = (
        '[train]\ndtype = "bf16"\nlora_rank = 0\nranks = 4\n'
        'ray_address = "10.0.0.1:6379"\ntokens_per_micro_batch = 8192\n'
    )
    model = write_model(tmp_path / "model", 31_623)  # 10^9 weights, of 16 bytes in the learner
    machine, cluster = check_memory(plan_of(tmp_path, text), {"p": model})
    assert machine.detail.endswith("vLLM's weights 2.0, its KV cache 1.1")
    assert cluster.state is State.OK
    assert cluster.detail == (
        "on the Ray cluster, each of 4 ranks needs about 4.0 GB: model 4.0, 8,192 tokens at once "
        "0.0"
    )


def test_the_ways_to_train_a_model_are_held_against_the_machine(tmp_path: Path) -> None:
    found = list(check_ways(write_model(tmp_path / "small", 3162)))
    assert [one.state for one in found] == [State.OK] * 4
    assert found[0].detail.startswith("all weights: the models need about 1.3 GB of the ")
    assert found[1].detail.startswith("all weights, with a critic: the models need about 1.4 GB")
    found = list(check_ways(write_model(tmp_path / "large", 1_000_000)))
    assert [one.state for one in found] == [State.NOTE] * 4
    assert "train.lora_rank" in found[0].fix
    with pytest.raises(BadModel, match="no model directory"):
        list(check_ways(tmp_path / "none"))


def dtypes(tmp_path: Path, text: str, **config: Any) -> list[tuple[State, str]]:
    models = {"p": write_model(tmp_path / "model", 1, **config)}
    found = check_dtypes(plan_of(tmp_path, text), models)
    # whether the machine is fast in bf16 is a note of its own
    return [(one.state, one.fix) for one in found if "this processor" not in one.detail]


BF16 = '[train]\ndtype = "bf16"\n'


def test_weights_that_a_run_would_round_or_cannot_train(tmp_path: Path) -> None:
    assert dtypes(tmp_path, BF16, dtype="bfloat16") == []
    (tmp_path / "model").rename(tmp_path / "first")
    rounded = (State.NOTE, 'Set train.dtype = "fp32".')
    assert dtypes(tmp_path, BF16, torch_dtype="float16") == [rounded]
    (tmp_path / "model").rename(tmp_path / "second")
    quantized = dtypes(tmp_path, BF16, quantization_config={"quant_method": "gptq"})
    assert quantized == [(State.FAULT, "Name the model as it was before.")]


def test_a_server_with_another_type_than_the_learner(tmp_path: Path) -> None:
    other = dtypes(tmp_path, BF16 + '[serve]\ndtype = "float16"\n', dtype="bfloat16")
    assert other == [(State.NOTE, "Remove serve.dtype.")]


def test_bf16_on_a_processor_without_it_is_a_note(tmp_path: Path) -> None:
    models = {"p": write_model(tmp_path / "model", 1)}
    notes = [one for one in check_dtypes(plan_of(tmp_path, BF16), models)]
    assert len(notes) == (fast_dtype() == "fp32")
