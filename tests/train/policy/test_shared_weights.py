"""The message about weights in a learner's memory, compared with a version's files."""

import hashlib
import os
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.model_files import write_model_files

from ltrain_train.policy import BadModel, HostMemory, SharedTensor, SharedWeights, find_difference

SHAPES: dict[str, tuple[int, ...]] = {"w": (4,), "m.q.weight": (3, 2)}


def message(shapes: dict[str, tuple[int, ...]]) -> SharedWeights:
    tensors = tuple(
        SharedTensor(name=name, dtype="float32", shape=shape, start=64 * number)
        for number, (name, shape) in enumerate(shapes.items())
    )
    memory = HostMemory(process=1, descriptor=2)
    return SharedWeights(token="0" * 32, learner="a", size=128, memory=memory, tensors=tensors)


@pytest.mark.parametrize(
    "shapes",
    [
        {"w": (4,)},
        {"w": (4,), "m.q.weight": (2, 3)},
        {"w": (4,), "m.q.weight": (3, 2), "more": (1,)},
    ],
    ids=["missing", "another shape", "unknown"],
)
def test_memory_with_other_tensors_than_the_version_is_refused(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]]
) -> None:
    model = write_model_files(tmp_path / "model", SHAPES, 1)
    message(SHAPES).require_tensors_of(model)
    differing = "more" if "more" in shapes else "m.q.weight"
    with pytest.raises(BadModel, match=rf"memory and '.*model' differ in tensor {differing}$"):
        message(shapes).require_tensors_of(model)


def test_a_message_with_other_fields_is_refused() -> None:
    content = message(SHAPES).model_dump(mode="json")
    assert SharedWeights.model_validate(content) == message(SHAPES)
    for change in ({"token": "../../etc"}, {"size": 0}, {"more": 1}, {"memory": {"path": "/x"}}):
        with pytest.raises(ValidationError):
            SharedWeights.model_validate(content | change)


def test_the_first_tensor_with_other_bytes_is_named(tmp_path: Path) -> None:
    model = write_model_files(tmp_path / "model", SHAPES, 1)
    data = (model / "model.safetensors").read_bytes()[-10:]  # 4 bytes and 6
    loaded = {
        "w": hashlib.sha256(data[:4]).hexdigest(),
        "m.q.weight": hashlib.sha256(data[4:]).hexdigest(),
    }
    assert find_difference(loaded, model) is None
    assert find_difference({**loaded, "w": "0"}, model) == "w"
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\0")
    assert find_difference(loaded, model) == "m.q.weight"
