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
from traceback import extract_tb
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
    # the user's module may raise anything, and end the process; the user can fix it
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name.split(".")[0]
        problem = _describe_missing(name, folder) if missing else _describe_error(error, folder)
        raise BadReference(f"Cannot import '{name}': {problem}") from error


def _describe_missing(name: str, folder: Path) -> str:
    modules = [each.stem for each in folder.glob("*.py")]
    matches = get_close_matches(name, modules, n=1)
    hint = f" Did you mean '{matches[0]}'?" if matches else ""
    return f"there is no such module in {folder}.{hint}"


def _describe_error(error: BaseException, folder: Path) -> str:
    """Return the error with its place: the last line of the user's code that led to it."""
    frames = extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}, line {error.lineno})"
    else:
        own = [each for each in frames if Path(each.filename).is_relative_to(folder.resolve())]
        place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    problem = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {problem}".rstrip(". ") + f"{place}."
