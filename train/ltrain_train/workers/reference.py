"""Loads a user's function that a recipe or the command line names.

It is named as `module:function`, or with the whole path of a file as `/folder/module.py:function`.
"""

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
_FILE_REFERENCE = re.compile(r"(/.*)/(\w+)\.py:([A-Za-z_]\w*)")


class BadReference(LtrainError, ImportError):
    """A reference does not name a function."""


def is_reference(text: str) -> bool:
    """Return whether a text names a function, and is not a command."""
    return any(form.fullmatch(text.strip()) for form in (_REFERENCE, _FILE_REFERENCE))


def load_function(reference: str, folder: Path) -> Callable[..., Any]:
    """Import the function that `reference` names; `folder` is searched first.

    Raises:
        BadReference: when there is no such module or function, or the import fails.
    """
    if not is_reference(reference):
        raise BadReference(
            f"'{reference}' is not of the form module:function. Write it as in agent:solve."
        )
    if file := _FILE_REFERENCE.fullmatch(reference.strip()):
        folder, module_name, name = Path(file[1]), file[2], file[3]
    else:
        module_name, name = reference.strip().split(":")
    module = _import_module(module_name, folder)
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    matches = get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], n=1)
    hint = f" Did you mean '{module_name}:{matches[0]}'?" if matches else ""
    raise BadReference(f"Module '{module_name}' has no function '{name}'.{hint}")


def code_digest(function: Callable[..., Any]) -> str:
    """Return a hash of the source file of the function's module; '' if it has none."""
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    return sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""


def _import_module(name: str, folder: Path) -> Any:
    path = str(folder.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except Exception as error:  # the user's module may raise anything; the user can fix it
        missing = isinstance(error, ModuleNotFoundError) and error.name == name.split(".")[0]
        problem = f"there is no such module in {folder}" if missing else _describe_error(error)
        raise BadReference(f"Cannot import '{name}': {problem}.") from error


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".")
