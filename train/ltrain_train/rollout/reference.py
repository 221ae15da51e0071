"""`module:function`: code of the user's, named in a recipe or on the command line."""

import importlib
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any

from ltrain_instrument.errors import LtrainError

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class BadReference(LtrainError, ImportError):
    """A `module:function` that does not lead to a function."""


def is_reference(text: str) -> bool:
    """Tell `module:function` from a command."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def load_function(reference: str, folder: Path) -> Callable[..., Any]:
    """Import the function that `reference` names, looking into `folder` first.

    Raises:
        BadReference: when there is no such module or function, or the import fails.
    """
    if not is_reference(reference):
        raise BadReference(f"'{reference}' is not of the form module:function, as in agent:solve.")
    module_name, name = reference.strip().split(":")
    module = _import(module_name, folder)
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    near = get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], n=1)
    hint = f" Did you mean '{module_name}:{near[0]}'?" if near else ""
    raise BadReference(f"Module '{module_name}' has no function '{name}'.{hint}")


def code_digest(function: Callable[..., Any]) -> str:
    """Hash the source file of the module that `function` is defined in; '' where there is none."""
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    return sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""


def _import(name: str, folder: Path) -> Any:
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the user's module raises on import is the user's to mend
        missing = isinstance(error, ModuleNotFoundError) and error.name == name.split(".")[0]
        told = f"there is no such module in {folder}" if missing else _told(error)
        raise BadReference(f"Cannot import '{name}': {told}.") from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".")
