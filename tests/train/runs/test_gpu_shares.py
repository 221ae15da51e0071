"""What models need on a GPU, held against measured memory, and how vLLM and a learner divide it."""

import json
import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
from benchmarks.step import SHAPES
from hypothesis import given
from hypothesis import strategies as st
from tests.train.gpus import H100, install_nvidia_smi, use_programs

from ltrain_train.errors import BadRun
from ltrain_train.gateway import SLEEP_MODE
from ltrain_train.gpu import list_gpus
from ltrain_train.policy import activation_size, cache_size, training_size
from ltrain_train.runs.gpu_shares import (
    MOST_TOKENS,
    OVERHEAD,
    GpuShares,
    divide,
    share_gpu,
)
from ltrain_train.runs.plan import Plan, make_plan
from ltrain_train.runs.resources import check_memory
from ltrain_transforms.recipe import MICRO_BATCH_TOKENS

GIB = 1 << 30
RECIPE = """
policy = [{ name = "p", model = "model" }]
reward = [{ name = "score", evaluation = "reward" }]

[rollout]
tasks = "tasks.jsonl"
agent = "agent:solve"
reward = "agent:score"
"""


def write_model(folder: Path, shape: str) -> Path:
    """Write a model of a known shape, whose weights take no room on the disk."""
    config = SHAPES[shape]
    width, inner, vocab = (
        config[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    keys = width * config["num_key_value_heads"] // config["num_attention_heads"]
    shapes = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, width)
    layer = {
        "q": (width, width), "k": (keys, width), "v": (keys, width), "o": (width, width),
        "gate": (inner, width), "up": (inner, width), "down": (width, inner),
        "norm1": (width,), "norm2": (width,),
    }  # fmt: skip
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}.weight": size for name, size in layer.items()}
    header, end = dict[str, Any](), 0
    for name, size in shapes.items():
        begin, end = end, end + 2 * prod(size)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("shape", "rank", "measured"),
    [("smollm2-135m", 0, 13), ("qwen2.5-1.5b", 0, 53), ("llama-3.2-3b", 16, 39)],
)
def test_a_learner_needs_what_was_measured(
    tmp_path: Path, shape: str, rank: int, measured: float
) -> None:
    """`make bench-step` on an H200, 16,384 tokens in a micro-batch: docs/gpus.md."""
    model = write_model(tmp_path / "model", shape)
    needed = training_size(model, rank) + 16_384 * activation_size(model)
    assert needed / GIB + 1 == pytest.approx(measured, rel=0.05)  # 1 GiB is CUDA's own


def test_the_cache_of_a_token(tmp_path: Path) -> None:
    # keys and values in bf16: 28 layers of 8 heads of 128
    assert cache_size(write_model(tmp_path / "model", "llama-3.2-3b")) == 2 * 2 * 28 * 8 * 128
    (tmp_path / "model" / "config.json").write_text("{}")
    assert cache_size(tmp_path / "model") == activation_size(tmp_path / "model") == 0


def shares(**changed: Any) -> GpuShares:
    needs = {"gpus": (), "vllm_needs": 6 * GIB, "learner_needs": 24 * GIB, "token": 2 << 20}
    return divide(**{"total": 80 * GIB, "share": None, "tokens": None, **needs, **changed})


def test_vllm_has_forty_percent_where_the_learner_does_not_need_it() -> None:
    roomy = shares(total=140 * GIB)
    assert (roomy.options[-1], roomy.tokens, roomy.fits) == ("0.4", MOST_TOKENS, True)


def test_vllm_leaves_what_the_learner_can_use() -> None:
    tight = shares()
    # 80 - 3 of nobody - 24 of the model - 32 of 16,384 tokens
    assert (tight.vllm, tight.tokens, tight.fits) == (21 * GIB, MOST_TOKENS, True)
    assert tight.options == ("--gpu-memory-utilization", "0.26")
    smaller = shares(total=40 * GIB)
    assert (smaller.vllm, smaller.tokens) == (6 * GIB, 7 * 512)
    assert smaller.fits


def test_what_does_not_fit_is_known() -> None:
    assert not shares(total=24 * GIB).fits
    assert not shares(share=0.05).fits
    assert not shares(tokens=60_000).fits


def test_the_recipes_values_come_first() -> None:
    own = shares(share=0.5, tokens=512)
    assert (own.vllm, own.tokens) == (40 * GIB, 512)
    assert shares(vllm_needs=0, share=0.5).options == ()
    assert shares(token=0).tokens == MICRO_BATCH_TOKENS


@given(st.integers(8, 200), st.integers(0, 40), st.integers(1, 100), st.integers(1, 4 << 20))
def test_what_fits_never_exceeds_the_gpu(total: int, vllm: int, learner: int, token: int) -> None:
    got = shares(total=total * GIB, vllm_needs=vllm * GIB, learner_needs=learner * GIB, token=token)
    if got.fits:
        used = got.vllm + got.learner_needs + got.tokens * got.token + OVERHEAD
        assert used <= got.total
        assert got.vllm >= got.vllm_needs


def test_vllm_alone_on_its_gpu_leaves_the_whole_of_the_first_one() -> None:
    apart = shares(gpus=("1",))
    assert (apart.options, apart.tokens, apart.fits) == ((), MOST_TOKENS, True)
    assert apart.learner == 77 * GIB
    assert shares(gpus=("1",), vllm_needs=75 * GIB).fits is False
    assert shares(gpus=("1",), vllm_needs=0).gpus == ()


def test_several_vllms_divide_what_one_would_have() -> None:
    two = shares(total=140 * GIB, servers=2)
    assert (two.vllm, two.options[-1], two.fits) == (56 * GIB, "0.2", True)
    assert "vLLM 56.0 GiB (0.2 for each of 2)" in two.describe()
    assert shares(gpus=("1",), servers=2).options == ("--gpu-memory-utilization", "0.46")
    assert shares(total=0, servers=2).options[-1] == "0.2"
    assert shares(servers=2, share=0.25).vllm == 40 * GIB


def test_in_turn_each_has_the_whole_but_what_the_other_keeps() -> None:
    swap = shares(total=40 * GIB, swap=True)
    assert (swap.learner, swap.tokens, swap.fits) == (37 * GIB, 13 * 512, True)
    assert swap.options == (SLEEP_MODE, "--gpu-memory-utilization", "0.92")
    assert shares(total=30 * GIB, swap=True).fits and not shares(total=30 * GIB).fits
    assert not shares(total=28 * GIB, swap=True).fits
    assert shares(share=0.5, swap=True).options[-1] == "0.5"
    unknown = shares(total=0, swap=True)
    assert unknown.options == (SLEEP_MODE, "--gpu-memory-utilization", "0.92")
    assert unknown.describe().endswith("vLLM and the learner have it in turn.")
    for alone in (shares(gpus=("1",), swap=True), shares(vllm_needs=0, swap=True)):
        assert not alone.swap and alone.options == ()


@pytest.fixture
def h100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU."""
    use_gpus(tmp_path, monkeypatch, 1)


def use_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    use_programs(install_nvidia_smi(tmp_path / "bin", *[H100] * count), monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("ltrain_train.runs.plan.is_usable", lambda: True)
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path / "home"))


def plan_of(tmp_path: Path, text: str = "") -> Plan:
    recipe = tmp_path / "ltrain.toml"
    recipe.write_text(RECIPE + text)
    return make_plan(recipe, model=None, updates=None)


def test_a_plan_on_a_gpu_sets_what_the_recipe_leaves_open(tmp_path: Path, h100: None) -> None:
    write_model(tmp_path / "model", "qwen2.5-1.5b")
    plan = plan_of(tmp_path, "[train]\nlora_rank = 0\n")
    assert plan.shares is not None and plan.shares.fits
    assert plan.serve_arguments[-2:] == ["--gpu-memory-utilization", "0.3"]
    assert plan.train.tokens_per_micro_batch == MOST_TOKENS
    assert plan.shares.describe() == (
        "GPU memory: vLLM 24.5 GiB (0.3); the learner 52.1 GiB, of which 23.0 GiB hold the model "
        "and 29.1 GiB the 16,384 tokens of a micro-batch."
    )
    own = '[train]\ntokens_per_micro_batch = 2048\n[serve]\nvllm = ["--gpu-memory-utilization=0.3"]'
    chosen = plan_of(tmp_path, own)
    assert chosen.train.tokens_per_micro_batch == 2048
    assert chosen.serve_arguments[-1] == "--gpu-memory-utilization=0.3"
    assert chosen.shares is not None and chosen.shares.options[-1] == "0.3"


def test_a_learner_elsewhere_or_without_a_model_has_no_part(tmp_path: Path, h100: None) -> None:
    assert plan_of(tmp_path).shares is None, "there is no model yet"
    write_model(tmp_path / "model", "smollm2-135m")
    plan = plan_of(tmp_path, '[train]\nray_address = "10.0.0.1:6379"\n')
    assert plan.shares is None
    assert "--gpu-memory-utilization" not in plan.serve_arguments
    assert share_gpu(plan_of(tmp_path).recipe, {}, list_gpus()) is None


ALL_WEIGHTS = "[train]\nlora_rank = 0\n"
IN_TURN = re.compile(r"In turn, on a GPU of 80 GiB.+?```text\n(.+?)```", re.S)


def test_auto_takes_turns_where_the_parts_would_be_too_small(tmp_path: Path, h100: None) -> None:
    write_model(tmp_path / "model", "llama-3.2-3b")
    adapter = plan_of(tmp_path)
    assert not adapter.swaps and adapter.shares is not None and adapter.shares.fits
    full = plan_of(tmp_path, f"{ALL_WEIGHTS}tokens_per_micro_batch = 14000\n")
    assert full.swaps and full.shares is not None and full.shares.fits
    assert SLEEP_MODE in full.serve_arguments
    [documented] = IN_TURN.findall(GPUS.read_text())
    assert full.describe_memory() == " ".join(documented.split())
    split = plan_of(tmp_path, f'{ALL_WEIGHTS}tokens_per_micro_batch = 14000\ncolocate = "split"\n')
    assert split.shares is not None and not split.shares.fits and not split.swaps
    beside = full.beside_gateway("http://127.0.0.1:1")
    assert beside.shares == split.shares


def test_a_recipe_that_wants_turns_has_them_or_hears_why_not(tmp_path: Path, h100: None) -> None:
    write_model(tmp_path / "model", "smollm2-135m")
    wanted = '[train]\ncolocate = "swap"\n'
    plan = plan_of(tmp_path, wanted)
    assert plan.swaps and plan.describe_memory().startswith("GPU memory in turn: vLLM 73.3 GiB")
    with pytest.raises(BadRun, match="another one answers at http://h:1"):
        plan.beside_gateway("http://h:1")
    others = plan_of(tmp_path, wanted + '[serve]\nupstream = "http://10.0.0.1:8000"\n')
    assert not others.swaps and "has no effect" in others.describe_memory()
    once = make_plan(tmp_path / "ltrain.toml", model=None, updates=None, once=True)
    assert not once.swaps


def test_swap_has_no_effect_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path / "home"))
    write_model(tmp_path / "model", "smollm2-135m")
    plan = plan_of(tmp_path, '[train]\ncolocate = "swap"\n')
    assert plan.shares is None and "has no effect" in plan.describe_memory()
    assert SLEEP_MODE not in plan.serve_arguments
    assert plan_of(tmp_path).describe_memory() == ""


GPUS = Path(__file__).parents[3] / "docs" / "gpus.md"
RECIPES = re.findall(r"\*\*(\d) GPUs?\*\*: (.+?)\n\n```toml\n(.+?)```", GPUS.read_text(), re.S)
"""The number of GPUs, a sentence with vLLM's, and a part of a recipe."""


@pytest.mark.parametrize(("count", "sentence", "text"), RECIPES, ids=[each[0] for each in RECIPES])
def test_the_recipes_of_the_docs_place_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: str, sentence: str, text: str
) -> None:
    use_gpus(tmp_path, monkeypatch, int(count))
    write_model(tmp_path / "model", "llama-3.1-8b" if "8B" in sentence else "qwen2.5-1.5b")
    plan = plan_of(tmp_path, text)
    assert plan.shares is not None and plan.shares.fits
    named = re.search(r"(?:vLLM has|share) GPUs? ([\d, ]+)", sentence)
    assert named is not None
    placed = named[1].replace(" ", "").rstrip(",")
    arguments = plan.serve_arguments
    if count == "1":
        assert "--gpus" not in arguments and "--gpu-memory-utilization" in arguments
    else:
        assert arguments[arguments.index("--gpus") + 1] == placed
        assert "--gpu-memory-utilization" not in arguments


MACHINES = Path(__file__).parents[3] / "docs" / "machines.md"


def test_the_recipe_of_two_machines_places_what_the_docs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MACHINES.read_text()
    [recipe] = re.findall(r"vLLM has the 8 GPUs.+?```toml\n(.+?)```", text, re.S)
    use_gpus(tmp_path, monkeypatch, 8)
    model = write_model(tmp_path / "model", "llama-3.1-8b")
    plan = plan_of(tmp_path, recipe)
    arguments = plan.serve_arguments
    assert arguments[arguments.index("--gpus") + 1] == "0,1,2,3,4,5,6,7"
    assert "--gpu-memory-utilization" not in arguments
    *_, cluster = check_memory(plan, {"p": model})
    assert cluster.detail in " ".join(text.split())


def test_there_is_a_recipe_for_each_usual_number_of_gpus() -> None:
    assert [each[0] for each in RECIPES] == ["1", "2", "4", "8"]


def test_a_recipe_and_the_environment_choose_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_gpus(tmp_path, monkeypatch, 4)
    write_model(tmp_path / "model", "smollm2-135m")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    plan = plan_of(tmp_path)
    assert plan.shares is not None and plan.shares.gpus == ("1",)
    assert "vLLM has GPU 1; the learner 76.6 GiB" in plan.shares.describe()
    shared = plan_of(tmp_path, '[serve]\ngpus = ["3"]\n')
    assert shared.shares is not None and shared.shares.gpus == ()
    assert "--gpus 3" in " ".join(shared.serve_arguments)
    assert "--gpu-memory-utilization" in shared.serve_arguments
    own = plan_of(tmp_path, '[serve]\ngpus = ["0"]\n')
    assert own.shares is not None and own.shares.gpus == ("0",)


@pytest.mark.parametrize(
    ("options", "placed"),
    [
        ("", "1,2,3,4,5"),
        ('"--tensor-parallel-size", "2"', "1,2,3,4"),
        ('"--data-parallel-size", "3"', "1,2,3"),
        ('"-dp=2", "-tp=2"', "1,2,3,4"),
        ('"--data_parallel_size=6"', ""),
        ('"--tensor-parallel-size", "6"', ""),
    ],
)
def test_vllm_gets_as_many_replicas_as_the_other_gpus_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, placed: str
) -> None:
    use_gpus(tmp_path, monkeypatch, 6)
    write_model(tmp_path / "model", "smollm2-135m")
    plan = plan_of(tmp_path, f"[serve]\nvllm = [{options}]\n")
    assert plan.shares is not None and ",".join(plan.shares.gpus) == placed
    assert ("--gpus" in plan.serve_arguments) is bool(placed)
    assert (f"vLLM has GPUs {placed}; " in plan.shares.describe()) is bool(placed)


@pytest.mark.parametrize(
    ("lines", "status"), [(["H100 MIG 1g.10gb, 580.1, [N/A], [N/A]"], 0), (["broken"], 9), ([], 0)]
)
def test_a_gpu_of_unknown_memory_is_shared_as_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], status: int
) -> None:
    use_gpus(tmp_path, monkeypatch, 1)
    install_nvidia_smi(tmp_path / "bin", *lines, status=status)
    write_model(tmp_path / "model", "smollm2-135m")
    plan = plan_of(tmp_path)
    assert plan.serve_arguments[-2:] == ["--gpu-memory-utilization", "0.4"]
    assert plan.train.tokens_per_micro_batch == MICRO_BATCH_TOKENS
    assert plan.shares is not None and plan.shares.fits
    assert plan.shares.describe() == "GPU memory: unknown; a micro-batch has 768 tokens."


def test_an_incomplete_model_is_the_error_of_a_later_check(tmp_path: Path, h100: None) -> None:
    (tmp_path / "model").mkdir()
    assert plan_of(tmp_path).shares is None
