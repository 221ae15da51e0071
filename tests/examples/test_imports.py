"""What the examples import of ltrain: nothing, but for those that show one of its interfaces."""

import ast
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted({file.parent for file in EXAMPLES.glob("*/*.py")})
EPISODES = {"ltrain_episodes"}
"""The interface that the agents and environments of two examples show."""
IMPORTED = {
    "code_repair/reward.py": {"ltrain"},  # run_isolated
    "environments/frozen_lake.py": EPISODES,
    "environments/tic_tac_toe.py": EPISODES,
    "self_correction/agent.py": EPISODES,
    "support_desk/users.py": {"ltrain"},  # reward
}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_example_imports_nothing_of_ltrain_but_the_interface_that_it_shows(folder: Path) -> None:
    every = set()
    for file in sorted(folder.glob("*.py")):
        nodes = [*ast.walk(ast.parse(file.read_text()))]
        names = {n.name for node in nodes if isinstance(node, ast.Import) for n in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        every |= names
        own = {name for name in names if name.startswith("ltrain")}
        assert own == IMPORTED.get(f"{folder.name}/{file.name}", set()), file
    assert every
