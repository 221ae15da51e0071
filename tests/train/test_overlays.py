"""Tests of the folders of packages that are laid over the main environment."""

import subprocess
import sys
from pathlib import Path

import pytest
from setup.environments import MAIN
from setup.pins import read_lock

from ltrain_train.errors import BadRun
from ltrain_train.overlays import TINKER, TRL, Overlay

LOCKS = Path(__file__).parents[2] / "setup"
EACH = pytest.mark.parametrize("overlay", [TRL, TINKER], ids=lambda each: each.package)


@EACH
def test_the_lock_has_the_same_packages_as_the_error(overlay: Overlay) -> None:
    pins = read_lock(LOCKS / f"{overlay.package}.lock")
    assert {f"{name}=={version}" for name, version in pins.items()} == {*overlay.requirements}
    assert not pins.keys() & read_lock(MAIN.lock).keys()


@EACH
def test_a_missing_package_is_an_error_with_both_remedies(
    overlay: Overlay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(overlay.setting.name, str(tmp_path))
    remedies = rf"`make setup-{overlay.package}`.*--target DIR .*{overlay.package}=="
    with pytest.raises(BadRun, match=rf"no {overlay.name} in .*{remedies}"):
        overlay.find()
    (tmp_path / overlay.package).mkdir()
    (tmp_path / overlay.package / "__init__.py").touch()
    assert overlay.find() == tmp_path


def test_the_packages_of_tinker_run_with_those_of_main() -> None:
    code = """
from ltrain_train.overlays import TINKER
TINKER.add()
TINKER.add()
import httpx, pydantic, renderers, sys, tinker, transformers
folder = str(TINKER.find())
assert sys.path[-1] == folder and sys.path.count(folder) == 1
assert tinker.__file__.startswith(folder) and renderers.__file__.startswith(folder)
assert not any(module.__file__.startswith(folder) for module in (httpx, pydantic, transformers))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
