"""The copy of a workspace and the diff of what an attempt left."""

import subprocess
from pathlib import Path

import pytest
from tests.sandboxed import sandbox_of

from ltrain_train.sandboxes import BadWorkspace
from ltrain_train.sandboxes.workspace import Changes, Workspace, Workspaces


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    (source / "code.py").write_text("print(1)\n")
    return source


def compared(tmp_path: Path, source: Path, files: dict[str, bytes]) -> Changes:
    workspace = Workspace(source, tmp_path / "private")
    left = tmp_path / "left"
    for name, content in files.items():
        (left / name).parent.mkdir(parents=True, exist_ok=True)
        (left / name).write_bytes(content)
    (tmp_path / "scratch").mkdir()
    return workspace.compare(left, tmp_path / "scratch", ["workspace/pipe\x1b: a fifo"])


def test_the_diff_names_all_changes(tmp_path: Path, source: Path) -> None:
    (source / "old").write_text("old\n")
    changes = compared(tmp_path, source, {"code.py": b"print(2)\n", "data": b"\0\1"})
    assert changes.diff == (
        "# not kept: workspace/pipe\\x1b: a fifo\n"
        "diff --git a/code.py b/code.py\nindex b917a72..d0e0fd6 100644\n"
        "--- a/code.py\n+++ b/code.py\n@@ -1 +1 @@\n-print(1)\n+print(2)\n"
        "diff --git a/data b/data\nnew file mode 100644\nindex 0000000..bdc955b\n"
        "Binary files /dev/null and b/data differ\n"
        "diff --git a/old b/old\ndeleted file mode 100644\nindex 3367afd..0000000\n"
        "--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
    )
    changes.remove()
    assert not (tmp_path / "left").exists()


def test_no_attribute_and_no_ignored_name_hides_a_change(tmp_path: Path, source: Path) -> None:
    files = {
        "code.py": b"print(2)\n",
        ".gitattributes": b"* -diff filter=evil\n",
        ".gitignore": b"*\n",
    }
    diff = compared(tmp_path, source, files).diff
    assert "+print(2)" in diff
    assert "+* -diff filter=evil" in diff


def test_a_long_diff_is_cut(tmp_path: Path, source: Path) -> None:
    diff = compared(tmp_path, source, {"long": b"word\n" * 600_000}).diff
    assert diff.endswith("\n# the diff is longer than 1 MiB\n")
    assert len(diff) < 1.1 * (1 << 20)


def test_a_repository_is_copied_with_its_history(tmp_path: Path, source: Path) -> None:
    subprocess.run(["git", "init", "--quiet", source], check=True)
    workspace = Workspace(source, tmp_path / "private")
    assert (workspace.copy / ".git" / "HEAD").exists()


def test_a_missing_workspace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadWorkspace, match="not a folder"):
        Workspace(tmp_path / "none", tmp_path / "private")


def test_the_copy_of_a_task_is_kept_while_its_attempts_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "work" / name).mkdir(parents=True)
        (tmp_path / "work" / name / "code.py").write_text(name)
    workspaces = Workspaces(sandbox_of(tmp_path, workspace="work/{id}"), tmp_path / "copies")
    with workspaces.of({"id": "a"}) as first, workspaces.of({"id": "b"}) as other:
        assert first is not None and other is not None
        assert (first.copy / "code.py").read_text() == "a"
        with workspaces.of({"id": "a"}) as second:
            assert second is first
        assert (first.copy / "code.py").exists()
        assert (other.copy / "code.py").read_text() == "b"
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_workspace_of_all_tasks_is_copied_before_the_first_attempt(
    tmp_path: Path, source: Path
) -> None:
    workspaces = Workspaces(sandbox_of(tmp_path, workspace="source"), tmp_path / "copies")
    (source / "code.py").write_text("print(2)\n")
    for task in ("a", "b"):
        with workspaces.of({"id": task}) as workspace:
            assert workspace is not None
            assert (workspace.copy / "code.py").read_text() == "print(1)\n"


@pytest.mark.parametrize("value", ["../secret", "..", "", "a/b", ["a"], None])
def test_a_task_cannot_name_another_folder(tmp_path: Path, value: object) -> None:
    workspaces = Workspaces(sandbox_of(tmp_path, workspace="work/{id}"), tmp_path / "copies")
    with (
        pytest.raises(BadWorkspace, match="must be the name of a file"),
        workspaces.of({"id": value}),
    ):
        pass
