"""The commands, the recipe and the make targets in the README exist."""

import re
import tomllib
from pathlib import Path

import typer

from ltrain.cli import app
from ltrain_transforms.recipe import Recipe

README = (Path(__file__).parents[2] / "README.md").read_text()
MAKEFILE = (Path(__file__).parents[2] / "Makefile").read_text()


def test_its_recipe_is_valid() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    recipe = Recipe.model_validate(tomllib.loads(block))
    assert [reward.name for reward in recipe.reward] == ["answer", "tool-failed"]


def test_its_commands_and_options_exist() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    typed = [line for line in README.splitlines() if line.strip().startswith(".venv/bin/ltrain")]
    assert len(typed) == 3
    for line in typed:
        _, name, *rest = line.split()
        known = {option for each in commands[name].params for option in each.opts}
        assert {word for word in rest if word.startswith("--")} <= known


def test_its_targets_exist() -> None:
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:.*## ", MAKEFILE, re.MULTILINE)
