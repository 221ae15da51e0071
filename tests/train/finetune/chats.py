"""Chats of another model in a store, and a recipe that trains a tiny model on them."""

from pathlib import Path
from typing import Any

from tests.otlp import insert_otlp, open_empty_store
from tests.transforms.conftest import Scene
from tests.transforms.exports.conftest import Talking, message

from ltrain_train.updates import OfflineOptions

RECIPE = """
source = { run = "demo" }
policy = [{ name = "helper" }]
reward = [{ name = "answer", evaluation = "reward" }]
train = { dtype = "fp32", lora_rank = 4, learning_rate = 5e-3, keep_versions = 1 }
"""
ANSWER = "w7 w8 w9"
"""What the better rollout of each task answers."""


def add_chats(scene: Scene, *, tasks: int = 8) -> list[Talking]:
    """Add two rollouts of each task: one with a good answer and reward 1, one with reward 0."""
    talks = []
    for task in range(tasks):
        for sample, (answer, reward) in enumerate(((ANSWER, 1.0), ("w1 w2 w3", 0.0))):
            talk = Talking(scene.attempt(f"t{task}", sample))
            talk.hears(message("user", f"w{20 + task} w{40 + task}")).answers(answer)
            talks.append(talk.ends(reward))
    return talks


def write_store(folder: Path, scene: Scene) -> str:
    """Write the spans of a scene to a store and return its name."""
    with open_empty_store(folder / "store") as store:
        insert_otlp(store, scene.request())
    return f"chdb://{folder / 'store'}"


def write_recipe(folder: Path, text: str = RECIPE) -> Path:
    """Write a recipe and return its file."""
    file = folder / "ltrain.toml"
    file.write_text(text)
    return file


def options(
    store: str | None = None, dataset: Path | None = None, **changed: Any
) -> OfflineOptions:
    """Return the options of an offline command that prints JSON."""
    return OfflineOptions(store, dataset, as_json=True, **changed)
