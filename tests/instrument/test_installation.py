"""Advice names the place that ltrain was installed from, as pip recorded it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ltrain_instrument import installation
from ltrain_instrument.installation import install_command, upgrade_advice


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that installs a distribution `ltrain` before the real one."""
    made = tmp_path / "site" / "ltrain-0.1.0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: ltrain\nVersion: 0.1.0\n")
    monkeypatch.setattr(sys, "path", [str(made.parent), *sys.path])

    def write(**direct_url: Any) -> None:
        (made / "direct_url.json").write_text(json.dumps(direct_url))

    return write


def test_a_clone_is_named(record: Any, tmp_path: Path) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    record(url=clone.as_uri(), dir_info={})
    assert install_command("serve") == f"pip install '{clone}[serve]'"
    assert install_command() == f"pip install '{clone}'"
    assert upgrade_advice() == (
        f"Update the clone {clone}, then run: pip install --upgrade '{clone}'"
    )
    record(url=clone.as_uri(), dir_info={"editable": True})
    assert install_command("collect") == f"pip install --editable '{clone}[collect]'"
    assert upgrade_advice().endswith(f"pip install --upgrade --editable '{clone}'")


def test_a_wheel_file_is_named(record: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "ltrain-0.1.0-py3-none-any.whl"
    wheel.touch()
    record(url=wheel.as_uri(), archive_info={})
    assert install_command("train") == f"pip install '{wheel}[train]'"
    assert upgrade_advice().endswith(
        "newer clone or wheel file: pip install --upgrade /path/to/ltrain"
    )


def test_a_remote_place_is_named(record: Any) -> None:
    record(url="https://example.org/ltrain-0.1.0-py3-none-any.whl", archive_info={})
    assert install_command("serve") == (
        "pip install 'ltrain[serve] @ https://example.org/ltrain-0.1.0-py3-none-any.whl'"
    )
    record(url="https://example.org/ltrain.git", vcs_info={"vcs": "git", "commit_id": "c0ffee"})
    assert install_command("serve") == (
        "pip install 'ltrain[serve] @ git+https://example.org/ltrain.git@c0ffee'"
    )


@pytest.mark.parametrize(
    "direct_url",
    [{}, {"url": "file:///nowhere/at/all", "dir_info": {}}],
    ids=["index", "removed"],
)
def test_an_unknown_place_is_a_path_never_a_name(record: Any, direct_url: Any) -> None:
    record(**direct_url)
    assert install_command("serve") == "pip install '/path/to/ltrain[serve]'"
    assert upgrade_advice().endswith("pip install --upgrade /path/to/ltrain")


def test_no_advice_in_code_or_docs_names_the_index() -> None:
    root = Path(__file__).parents[2]
    packages = ("instrument", "collector", "transforms", "train", "cli", "setup", "docs")
    files = [
        *(path for name in packages for path in (root / name).rglob("*.[pm][yd]")),
        *root.glob("*.md"),
    ]
    own = Path(installation.__file__)
    assert len(files) > 100
    for path in files:
        text = path.read_text()
        for line in text.splitlines():
            after = line.partition("pip install ")[2].replace("--upgrade ", "")
            assert path == own or not after.lstrip("'\"").startswith("ltrain"), f"{path}: {line}"
