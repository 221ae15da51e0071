"""The learner's masked log-probabilities are those of a real vLLM, for each kind of constraint."""

import json
import struct
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import transformers
from tests.train.learner.conftest import TRAIN
from tests.train.tiny import SIZES

from ltrain_train.learner.client import LearnerClient
from ltrain_transforms.tables import SAMPLES

hugging_face: Any = transformers  # its functions have no types
SMOLLM2 = Path(__file__).parents[3] / ".ltrain" / "models" / "smollm2"
OTHERS = ("llama", "smollm2")
"""Models of the nightly run, beside the tiny Qwen3."""
COUNTS = (10, pytest.param(200, marks=pytest.mark.nightly))
"""Calls of a kind."""
PADDING = 64
"""Ids of the model that its tokenizer does not have."""
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["sun", "rain"]},
        "place": {
            "type": "object",
            "properties": {"north": {"type": "boolean"}},
            "required": ["north"],
            "additionalProperties": False,
        },
        "temperatures": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 40},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["city", "kind", "place", "temperatures"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "Return the weather.", "parameters": CITY}
TOOL = {"type": "function", "function": FUNCTION}
STRICT = {"type": "function", "function": {**FUNCTION, "strict": True}}
NAMED = {"type": "function", "function": {"name": "weather"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
KINDS: dict[str, dict[str, Any]] = {
    "json_schema": {"response_format": FORMAT},
    "json_object": {"response_format": {"type": "json_object"}},
    "enum": {"structured_outputs": {"json": {"enum": ["sun", "rain", "neither of both"]}}},
    "regex": {"structured_outputs": {"regex": "[0-9]{3}-[a-z]{2,4}"}},
    "choice": {"structured_outputs": {"choice": ["yes", "no", "not sure"]}},
    "required": {"tools": [TOOL], "tool_choice": "required"},
    "named": {"tools": [TOOL], "tool_choice": NAMED},
    "strict": {"tools": [STRICT]},
    "single": {"tools": [TOOL], "parallel_tool_calls": False},
    "free tools": {"tools": [TOOL]},
    "free": {},
}
FREE = {"free tools", "free"}
ENDS = ("</think>", "<tool_call>")
"""The tokens that end the reasoning for vLLM's parser `qwen3`."""
THINKING = {"json_schema": {ENDS[0]}, "choice": {ENDS[0]}, "required": {*ENDS}, "free": set()}
"""Kinds of calls that think first, and the tokens that must end the reasoning of some of them."""
NO_THOUGHT = {"reasoning_effort": "none"}
MARKS = ("<think>", *ENDS, "</tool_call>")
FAVOUR = torch.tensor([[5.0], [4.0]])
"""Factors of their logits, with which the random model often samples them."""


def write_model(folder: Path, kind: str) -> Path:
    """Write a tiny random model with SmolLM2's tokenizer and some ids more, or SmolLM2 itself."""
    if kind == "smollm2":
        return SMOLLM2
    tokenizer = hugging_face.AutoTokenizer.from_pretrained(SMOLLM2)
    tokenizer.add_tokens([*MARKS])
    classes = {
        "llama": (hugging_face.LlamaConfig, hugging_face.LlamaForCausalLM),
        "qwen3": (hugging_face.Qwen3Config, hugging_face.Qwen3ForCausalLM),
    }
    config, model = classes[kind]
    transformers.set_seed(0)
    written = model(
        config(
            vocab_size=len(tokenizer) + PADDING,
            **SIZES,
            max_position_embeddings=2048,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            initializer_range=0.2,
        )
    )
    written.lm_head.weight.data[tokenizer.convert_tokens_to_ids([*ENDS])] *= FAVOUR
    written.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(
    scope="module",
    params=["qwen3", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in OTHERS)],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / request.param, request.param)


@pytest.fixture(scope="module")
def stage(model: Path, tmp_path_factory: pytest.TempPathFactory, load: Any) -> Iterator[Any]:
    parsers = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    if model.name == "qwen3":
        parsers += ["--reasoning-parser", "qwen3"]
    folder = tmp_path_factory.mktemp("masks")
    with load("stage").before_vllm(folder, model, *parsers) as (stage, _):
        yield stage


@pytest.fixture(scope="module")
def learner(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerClient]:
    folder = tmp_path_factory.mktemp("learner")
    client = LearnerClient(TRAIN, model, directory=folder, home=folder, policy="policy", recipe="r")
    client.start()
    try:
        client.wait(timeout=180)
        yield client
    finally:
        client.close()


def sample(stage: Any, kind: str, count: int, *, thinks: bool) -> list[dict[str, Any]]:
    """Return a row of each of `count` calls.

    A tool call that ends the reasoning and that the grammar does not allow is an error in vLLM.
    """
    before = len(stage.spans())
    fields = {"max_tokens": 60, **({} if thinks else NO_THOUGHT), **KINDS[kind]}

    def ask(number: int) -> int:
        key = stage.key(sampling={"temperature": 1.0, "seed": number})
        answer = stage.ask(f"The weather of day {number}?", key=key, **fields)
        status: int = answer.status_code
        return status

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(ask, range(count)))
    answered = [span for span in stage.spans()[before:] if "error.type" not in span["attributes"]]
    assert statuses.count(200) == len(answered)
    assert set(statuses) <= ({200, 400} if thinks else {200})
    return [make_row(span, number) for number, span in enumerate(answered)]


def make_row(span: dict[str, Any], number: int) -> dict[str, Any]:
    values = span["attributes"]
    ids = json.loads(values["ltrain.response_token_ids"])
    packed = b64decode(values["ltrain.response_logprobs"])
    ones = [1.0] * len(ids)
    return {
        "sample_id": f"s{number}",
        "rollout_id": f"s{number}",
        "tokens": "sampled",
        "prompt_ids": json.loads(values["ltrain.prompt_token_ids"]),
        "response_ids": ids,
        "response_mask": [1] * len(ids),
        "rollout_logprobs": list(struct.unpack(f"<{len(ids)}f", packed)),
        "advantages": ones,
        "token_rewards": ones,
        "loss_weight": ones,
        "temperature": 1.0,
        "call_offsets": [0],
        "call_constraints": [values.get("ltrain.constraint")],
        "call_versions": [1],
        "call_positions": [0],
        "transition_ids": ["t"],
    }


def differences(learner: LearnerClient, rows: list[dict[str, Any]], file: Path) -> list[float]:
    """Return the difference of each token's log-probability between the learner and the server."""
    pl.DataFrame(rows, schema=SAMPLES.schema).write_parquet(file)
    pairs = zip(rows, learner.log_probs(file), strict=True)
    found = [
        abs(one - other)
        for row, ours in pairs
        for one, other in zip(row["rollout_logprobs"], ours, strict=True)
    ]
    assert len(found) == sum(len(row["response_ids"]) for row in rows)
    print(f"{len(rows)} calls, {len(found)} tokens: at most {max(found):.1e}")
    return found


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_masked_log_probabilities_are_the_servers(
    stage: Any, learner: LearnerClient, tmp_path: Path, kind: str, count: int
) -> None:
    rows = sample(stage, kind, count, thinks=False)
    assert {row["call_constraints"][0] is None for row in rows} == {kind in FREE}
    assert max(differences(learner, rows, tmp_path / "samples.parquet")) < 1e-4


@pytest.mark.parametrize("model", ["qwen3"], indirect=True)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", THINKING)
def test_masks_begin_where_the_servers_begin_after_the_reasoning(
    stage: Any, learner: LearnerClient, model: Path, tmp_path: Path, kind: str, count: int
) -> None:
    rows = sample(stage, kind, count, thinks=True)
    assert max(differences(learner, rows, tmp_path / "samples.parquet")) < 1e-4
    tokenizer = hugging_face.AutoTokenizer.from_pretrained(model)
    answers = [tokenizer.convert_ids_to_tokens(row["response_ids"]) for row in rows]
    ends = {next((token for token in answer if token in ENDS), "") for answer in answers}
    assert ends >= THINKING[kind]
