"""Every code block of the README and docs/ names a language that a test of this folder runs."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.blocks import BLOCKS, ROOT, Block, parametrize, read_blocks

from ltrain_transforms.recipe import Recipe

TESTS = {
    "bash": "test_commands.py",
    "console": "test_commands.py",
    "sql": "test_commands.py",
    "python": "test_python_blocks.py",
    "toml": "test_code_blocks.py",
    "json": "test_code_blocks.py",
    "text": "",
}
"""The module that runs the blocks of a language; `text` is output and layouts, not code."""
MINIMAL = {"policy": [{"name": "sql"}], "reward": [{"name": "a", "evaluation": "reward"}]}
ENTRY_POINTS = ("ltrain.estimators", "ltrain.step_estimators", "ltrain.rules")


def unknown_languages(blocks: list[Block]) -> list[str]:
    return [f"{block.id} [{block.language}]" for block in blocks if block.language not in TESTS]


def test_every_block_has_a_language_that_a_test_runs() -> None:
    assert unknown_languages(BLOCKS) == []
    assert len(BLOCKS) > 100
    for module in filter(None, TESTS.values()):
        assert (Path(__file__).parent / module).exists()


def test_text_blocks_have_no_commands() -> None:
    lines = [
        line for block in BLOCKS if block.language == "text" for line in block.text.splitlines()
    ]
    assert [line for line in lines if line.lstrip().startswith(("$ ", "ltrain "))] == []


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("```\nltrain up\n```\n", ""),
        ("```rust\nfn main() {}\n```\n", "rust"),
        ("A list:\n\n    ltrain up\n", "indented"),
        ("* a\n\n  ```\n  b\n  ```\n", ""),
    ],
)
def test_blocks_without_a_known_language_are_refused(text: str, language: str) -> None:
    [refused] = unknown_languages(read_blocks(ROOT / "README.md", text))
    assert refused.endswith(f"[{language}]")


@parametrize("toml")
def test_toml_is_a_recipe_or_a_pyproject(block: Block) -> None:
    fields = tomllib.loads(block.text)
    if "project" in fields:
        assert fields.keys() == {"project"} and fields["project"].keys() == {"entry-points"}
        assert fields["project"]["entry-points"].keys() <= set(ENTRY_POINTS)
        return
    rewards = fields.get("reward", [])
    declared = set(declared_rules())  # rules of a package that is not installed here
    assert {each["python"] for each in rewards if "python" in each} <= declared
    installed = [each for each in rewards if "python" not in each]
    Recipe.model_validate({**MINIMAL, **fields, "reward": installed or MINIMAL["reward"]})


def declared_rules() -> Iterator[str]:
    """Yield the names of the Python rules that the pyproject blocks declare."""
    for block in BLOCKS:
        if block.language == "toml":
            project = tomllib.loads(block.text).get("project", {})
            yield from project.get("entry-points", {}).get("ltrain.rules", {})


@parametrize("json")
def test_json_is_valid(block: Block) -> None:
    json.loads(block.text)
