"""Datasets of traffic without token ids, through OTLP, chDB and `build`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ltrain_collector.store import Store
from ltrain_transforms.build import build
from ltrain_transforms.dataset import Dataset
from ltrain_transforms.exports import Converted
from ltrain_transforms.recipe import Recipe

RECIPE = """
source = { run = "demo" }
policy = [{ name = "helper" }]
reward = [{ name = "answer", evaluation = "reward" }]
"""

Message = dict[str, Any]
OPENAI = "opentelemetry.instrumentation.openai.v1"


def lines(made: Converted) -> list[dict[str, Any]]:
    """Give the rows of a conversion to JSON lines."""
    assert isinstance(made.rows, list)
    return made.rows


def told(role: str, text: str, *parts: Message) -> Message:
    texts = [{"type": "text", "content": text}] if text else []
    return {"role": role, "parts": [*texts, *parts]}


@dataclass
class Talking:
    """One rollout of a chat agent, whose SDK's spans hold messages and nothing else."""

    attempt: Any
    history: list[Message] = field(default_factory=list)

    def hears(self, *messages: Message) -> "Talking":
        self.history += messages
        return self

    def answers(self, text: str, *parts: Message, tools: str | None = None) -> str:
        answer = told("assistant", text, *parts)
        said = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "helper",
            "gen_ai.input.messages": json.dumps(self.history),
            "gen_ai.output.messages": json.dumps([{**answer, "finish_reason": "stop"}]),
        }
        said |= {"gen_ai.tool.definitions": tools} if tools else {}
        self.history.append(answer)
        return str(self.attempt.emit("openai.chat", OPENAI, said))

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
    """Build a dataset of all that was said."""

    def make(recipe: str = RECIPE) -> Dataset:
        path = tmp_path / "helper.toml"
        path.write_text(recipe)
        store.insert_otlp(scene.request())
        return build(store, Recipe.load(path), tmp_path / "dataset")

    return make


SYSTEM = told("system", "You help.")


def question(text: str) -> Sequence[Message]:
    return SYSTEM, told("user", text)
