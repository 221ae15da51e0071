"""The prepared folder that the code blocks run in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.project import Project, serve_project, write_project


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A folder with the server of its store, for all blocks."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "project").mkdir()
    write_project(folder / "project", folder / "store")
    with serve_project(folder / "project", folder / "store") as project:
        yield project


@pytest.fixture
def project(served: Project, tmp_path: Path) -> Project:
    """A copy of the folder for one block."""
    return served.copy(tmp_path)
