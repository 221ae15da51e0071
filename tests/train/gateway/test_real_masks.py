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
import transformers
from tests.train.learner.conftest import TRAIN
from tests.train.tiny import SIZES

from ltrain_train.gateway.serving.vllm import Vllm, VllmOptions
from ltrain_train.learner.client import LearnerClient
from ltrain_train.processes import Children
from ltrain_transforms.tables import SAMPLES

hugging_face: Any = transformers  # its functions have no types
SMOLLM2 = Path(__file__).parents[3] / ".ltrain" / "models" / "smollm2"
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


def write_model(folder: Path, kind: str) -> Path:
    """Write a tiny random model with SmolLM2's tokenizer and some ids more."""
    tokenizer = hugging_face.AutoTokenizer.from_pretrained(SMOLLM2)
    classes = {
        "llama": (hugging_face.LlamaConfig, hugging_face.LlamaForCausalLM),
        "qwen3": (hugging_face.Qwen3Config, hugging_face.Qwen3ForCausalLM),
    }
    config, model = classes[kind]
    transformers.set_seed(0)
    model(
        config(
            vocab_size=len(tokenizer) + PADDING,
            **SIZES,
            max_position_embeddings=2048,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            initializer_range=0.2,
        )
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["qwen3", pytest.param("llama", marks=pytest.mark.nightly)])
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, load: Any
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("masks")
    model = write_model(folder / "model", request.param)
    options = VllmOptions(
        dtype="float32",
        extra=("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    )
    with Children() as children:
        vllm = Vllm(
            children,
            name="policy",
            options=options,
            log=folder / "vllm.log",
            sockets=folder / "sockets",
        )
        vllm.start(model)
        with load("recorder").Recorder(vllm.socket) as recorder:
            stage = load("stage").Stage(recorder.url, folder / "home")
            stage.policies.register("policy", model)
            draft = write_model(stage.policies.draft("policy"), request.param)
            stage.policies.register_files("policy", draft, parent=0, dataset="d", recipe="r")
            with stage.running():
                yield stage


@pytest.fixture(scope="module")
def learner(stage: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerClient]:
    folder = tmp_path_factory.mktemp("learner")
    base = stage.home.parent / "model"
    client = LearnerClient(TRAIN, base, directory=folder, home=folder, policy="policy", recipe="r")
    client.start()
    try:
        client.wait(timeout=180)
        yield client
    finally:
        client.close()


def ask(stage: Any, kind: str, number: int) -> None:
    content = f"The weather of day {number}?"
    answer = stage.ask(
        content, key=stage.key(sampling={"temperature": 1.0}), max_tokens=60, **KINDS[kind]
    )
    assert answer.status_code == 200, answer.text


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


@pytest.mark.parametrize("kind", KINDS)
def test_masked_log_probabilities_are_the_servers(
    stage: Any, learner: LearnerClient, pytestconfig: pytest.Config, tmp_path: Path, kind: str
) -> None:
    before = len(stage.spans())
    count = 200 if pytestconfig.getoption("--nightly") else 20
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: ask(stage, kind, number), range(count)))
    spans = stage.spans()[before:]
    assert len(spans) == count
    rows = [make_row(span, number) for number, span in enumerate(spans)]
    assert {row["call_constraints"][0] is None for row in rows} == {kind in FREE}
    pl.DataFrame(rows, schema=SAMPLES.schema).write_parquet(tmp_path / "samples.parquet")
    found = learner.log_probs(tmp_path / "samples.parquet")
    differences = [
        abs(one - other)
        for row, ours in zip(rows, found, strict=True)
        for one, other in zip(row["rollout_logprobs"], ours, strict=True)
    ]
    assert len(differences) == sum(len(row["response_ids"]) for row in rows)
    assert max(differences) < 1e-4
