"""Train the agent you already run, from the traces it already emits.

The names below are the public Python interface. Each is imported when it is first used: an agent
has only the instrumentation installed, and the command line must start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ltrain_collector.store import Store
    from ltrain_instrument import configure, flush, prompt, reward, rollout, task
    from ltrain_train.sandboxes import run_isolated
    from ltrain_train.session import train
    from ltrain_transforms.datasets import Dataset, build
    from ltrain_transforms.recipe import Recipe
    from ltrain_transforms.show import show

__version__ = "0.1.0"
__all__ = [
    "Dataset",
    "Recipe",
    "Store",
    "build",
    "configure",
    "flush",
    "prompt",
    "reward",
    "rollout",
    "run_isolated",
    "show",
    "task",
    "train",
]

_AGENT_MODULES = {
    **dict.fromkeys(
        ("configure", "flush", "prompt", "reward", "rollout", "task"), "ltrain_instrument"
    ),
    "run_isolated": "ltrain_train.sandboxes",
}
"""The modules that import nothing of a pip extra."""
_STORE_MODULES = {
    "Dataset": "ltrain_transforms.datasets",
    "Recipe": "ltrain_transforms.recipe",
    "Store": "ltrain_collector.store",
    "build": "ltrain_transforms.datasets",
    "show": "ltrain_transforms.show",
    "train": "ltrain_train.session",
}
"""The modules that import packages of a pip extra: `collect`, or `train` for the last one."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Raises:
        MissingExtra: when the module of the name needs a pip extra that is not installed.
    """
    module = _AGENT_MODULES.get(name) or _STORE_MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'ltrain' has no attribute '{name}'")
    try:
        value = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        from ltrain.cli import EXTRAS
        from ltrain_instrument.errors import MissingExtra

        package = (error.name or "").partition(".")[0]
        if name not in _STORE_MODULES or package.startswith("ltrain"):
            raise
        extra = "train" if name == "train" else EXTRAS.get(package, "collect")
        raise MissingExtra(f"ltrain.{name}", package, extra) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names that can be imported here; `help(ltrain)` imports each of them."""
    from importlib.util import find_spec

    try:
        installed = find_spec("polars") and find_spec("chdb")
    except ImportError:  # from an import hook that blocks a package
        installed = None
    return sorted(["__version__", *(__all__ if installed else _AGENT_MODULES)])
