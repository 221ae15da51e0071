"""Imports the modules of examples, which have the same names in each."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


def load_module(folder: Path, name: str) -> ModuleType:
    """Import a module of the example in `folder` under a name of its own."""
    spec = spec_from_file_location(f"{folder.name}_{name}", folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
