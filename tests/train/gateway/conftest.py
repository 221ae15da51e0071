"""A gateway with a fake vLLM and a policy of two versions."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.fake_vllm import FakeVllm
from tests.model_files import write_model_files, write_tensors

HERE = Path(__file__).parent


def load(name: str) -> ModuleType:
    """Import a module from the folder of these tests."""
    known = sys.modules.get(f"gateway_tests_{name}")
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(f"gateway_tests_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def write_model(directory: Path, fill: int = 0, size: int = 4) -> Path:
    """Write a fake model: config, tokenizer, a vector and a matrix."""
    return write_model_files(directory, {"w": (size,), "m.q.weight": (3, 2)}, fill)


def write_adapter(directory: Path, fill: int = 0, rank: int = 1) -> Path:
    """Write a fake adapter of that model's matrix."""
    directory.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    names = [f"base_model.model.m.q.lora_{letter}.weight" for letter in "AB"]
    shapes = dict(zip(names, ((rank, 2), (3, rank)), strict=True))
    write_tensors(directory / "adapter_model.safetensors", shapes, fill)
    return directory


@pytest.fixture
def vllm() -> Iterator[Any]:
    with FakeVllm() as fake:
        yield fake


def _stage(url: str, folder: Path) -> Any:
    stage = load("stage").Stage(url, folder / "home")
    stage.policies.register("policy", write_model(folder / "model"))
    stage.policies.register_files(
        "policy", write_model(folder / "new", fill=1), parent=0, dataset="d1", recipe="r1"
    )
    return stage


@pytest.fixture
def prepared_stage(vllm: Any, tmp_path: Path) -> Any:
    """A gateway that does not run yet; version 1 is not served."""
    return _stage(vllm.url, tmp_path)


@pytest.fixture
def stage(prepared_stage: Any) -> Iterator[Any]:
    with prepared_stage.running() as stage:
        yield stage


@pytest.fixture
def stage_without_vllm(tmp_path: Path) -> Iterator[Any]:
    with _stage("http://127.0.0.1:9", tmp_path).running() as stage:
        yield stage


@pytest.fixture(name="write_model")
def write_model_fixture() -> Any:
    return write_model


@pytest.fixture(name="write_adapter", scope="session")
def write_adapter_fixture() -> Any:
    return write_adapter


@pytest.fixture(name="load", scope="session")
def load_fixture() -> Any:
    return load
