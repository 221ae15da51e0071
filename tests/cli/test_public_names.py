"""`import ltrain`: every public name, in a full environment and in an agent's."""

import subprocess
import sys
from importlib import metadata

import pytest

import ltrain
from ltrain_instrument.installation import install_command

STORE_NAMES = ("Dataset", "Recipe", "Store", "build", "show", "train")
AGENT_NAMES = ("configure", "flush", "prompt", "reward", "rollout", "run_isolated", "task")
NOT_INSTALLED = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("polars", "chdb", "pydantic"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Finder())
"""
"""A process in which the extra `collect` is not installed."""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_public_names_are_those_of_their_modules() -> None:
    from ltrain import Dataset, Recipe, Store, build, reward, rollout
    from ltrain_collector.store import Store as TheStore
    from ltrain_instrument import reward as the_reward
    from ltrain_instrument import rollout as the_rollout
    from ltrain_transforms.datasets import Dataset as TheDataset
    from ltrain_transforms.datasets import build as the_build
    from ltrain_transforms.recipe import Recipe as TheRecipe

    assert (Dataset, Recipe, Store) == (TheDataset, TheRecipe, TheStore)
    assert (build, reward, rollout) == (the_build, the_reward, the_rollout)


def test_all_and_dir_list_every_public_name() -> None:
    assert sorted(ltrain.__all__) == sorted(STORE_NAMES + AGENT_NAMES)
    assert dir(ltrain) == sorted(("__version__", *ltrain.__all__))
    assert all(hasattr(ltrain, name) for name in ltrain.__all__)


def test_version_is_that_of_the_distribution() -> None:
    assert ltrain.__version__ == metadata.version("ltrain")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ltrain' has no attribute 'Stoer'"):
        _ = ltrain.Stoer


@pytest.mark.parametrize("name", STORE_NAMES)
def test_missing_extra_is_named_with_the_command_that_installs_it(name: str) -> None:
    done = run(f"{NOT_INSTALLED}\nfrom ltrain import {name}")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ltrain_instrument.errors.MissingExtra: ")
    package = "pydantic" if name == "Recipe" else "polars"
    assert f"ltrain.{name} needs the package {package}, which is not installed here." in last
    extra = "train" if name == "train" else "collect"
    assert last.endswith(f"Install it with: {install_command(extra)}")


def test_missing_extra_is_an_import_error() -> None:
    done = run(f"{NOT_INSTALLED}\ntry: from ltrain import Store\nexcept ImportError: print('ok')")
    assert (done.returncode, done.stdout) == (0, "ok\n")


def test_agent_names_work_without_the_store() -> None:
    code = "from ltrain import reward, rollout\nwith rollout(task='1'): reward(1.0)"
    done = run(f"{NOT_INSTALLED}\n{code}")
    assert (done.returncode, done.stderr) == (0, "")


def test_dir_lists_only_what_is_installed() -> None:
    """`help()` and debuggers read every name that `dir` lists."""
    code = "import ltrain\nprint(*dir(ltrain))\n[getattr(ltrain, name) for name in dir(ltrain)]"
    done = run(f"{NOT_INSTALLED}\n{code}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(("__version__", *AGENT_NAMES))
