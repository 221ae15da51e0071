"""Datasets of traces without token ids, made with OTLP, chDB and `build`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from tests.otlp import insert_otlp
from tests.transforms.samples.test_split_reasons import QWEN, SPECIAL
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ltrain_collector.store import Store
from ltrain_transforms.datasets import Dataset, build
from ltrain_transforms.exports.conversion import (
    ExportOptions,
    ExportResult,
    JsonLines,
    ParquetRows,
)
from ltrain_transforms.exports.conversion_files import ExportJob
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.source import SPANS_PER_BATCH

RECIPE = """
source = { run = "demo" }
policy = [{ name = "helper" }]
reward = [{ name = "answer", evaluation = "reward" }]
"""

Message = dict[str, Any]
OPENAI = "opentelemetry.instrumentation.openai.v1"


@dataclass(frozen=True, slots=True)
class Exported:
    """An export in memory."""

    rows: list[dict[str, Any]] | pl.DataFrame
    lineage: list[list[str]]
    drops: pl.DataFrame


def converted(
    export: Callable[[ExportJob], ExportResult], dataset: Dataset, options: ExportOptions
) -> Exported:
    """Export a dataset to memory."""
    with TemporaryDirectory() as folder, ExportJob(dataset, options, Path(folder)) as job:
        result = export(job)
        if isinstance(result.rows, JsonLines):
            rows: Any = [json.loads(line) for line in b"".join(result.rows.rows).splitlines()]
        else:
            assert isinstance(result.rows, ParquetRows)
            rows = pl.concat([pl.DataFrame(), *result.rows.rows], how="diagonal")
        return Exported(rows, result.lineage, result.drops)


def lines(made: Exported) -> list[dict[str, Any]]:
    """Return the rows of an export to JSON Lines."""
    assert isinstance(made.rows, list)
    return made.rows


def message(role: str, text: str, *parts: Message) -> Message:
    texts = [{"type": "text", "content": text}] if text else []
    return {"role": role, "parts": [*texts, *parts]}


@dataclass
class Talking:
    """One rollout of a chat agent whose spans hold only messages."""

    attempt: Any
    history: list[Message] = field(default_factory=list)

    def hears(self, *messages: Message) -> "Talking":
        self.history += messages
        return self

    def answers(self, text: str, *parts: Message, tools: str | None = None) -> str:
        answer = message("assistant", text, *parts)
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "helper",
            "gen_ai.input.messages": json.dumps(self.history),
            "gen_ai.output.messages": json.dumps([{**answer, "finish_reason": "stop"}]),
        }
        attributes |= {"gen_ai.tool.definitions": tools} if tools else {}
        self.history.append(answer)
        return str(self.attempt.emit("openai.chat", OPENAI, attributes))

    def ends(self, reward: float | None = None, outcome: str = "ok") -> "Talking":
        if reward is not None:
            self.attempt.evaluate(reward)
        self.attempt.close(outcome)
        return self

    @property
    def execution(self) -> str:
        return str(self.attempt.execution)


Talks = Callable[..., Talking]


@pytest.fixture
def talks(scene: Any) -> Talks:
    """Begin a rollout: `talks(task, sample, *messages)`."""

    def begin(task: str = "t1", sample: int = 0, *heard: Message) -> Talking:
        return Talking(scene.attempt(task, sample)).hears(*heard)

    return begin


@pytest.fixture
def built(scene: Any, store: Store, tmp_path: Path) -> Callable[[], Dataset]:
    """Return a function that builds a dataset of all rollouts."""

    def make(recipe: str = RECIPE, name: str = "dataset", spans: int = SPANS_PER_BATCH) -> Dataset:
        path = tmp_path / "helper.toml"
        path.write_text(recipe)
        insert_otlp(store, scene.request())
        return build(store, Recipe.load(path), tmp_path / name, spans_a_batch=spans)

    return make


SYSTEM = message("system", "You help.")


def question(text: str) -> Sequence[Message]:
    return SYSTEM, message("user", text)


GENERATION = "{{- '<|im_start|>assistant\\n' -}}"


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer folder of `save_pretrained`: byte-level BPE, and a template without thinking."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the answer is two"] * 5, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    conditional = "{%- if add_generation_prompt -%}" + GENERATION + "{%- endif -%}"
    (folder / "chat_template.jinja").write_text(QWEN.replace(GENERATION, conditional))
    return folder
