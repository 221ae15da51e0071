"""OpenTelemetry's instrumentor of httpx and httpx2, without the one that the agent does not import.

Its module imports both: 0.2 s of CPU for the other one, which brings its command line along. Here
it is loaded without that one, and completed when the agent imports that too, or asks for its names.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from threading import get_ident
from types import ModuleType
from typing import Any

HOME = "opentelemetry.instrumentation.httpx"

TWINS = {"httpx": "HTTPXClientInstrumentor", "httpx2": "HTTPX2ClientInstrumentor"}
"""The libraries, and the class that instruments each."""


def load(instrument: Callable[[], object]) -> object:
    """Call `instrument`, which loads an instrumentor of HOME."""
    if HOME not in sys.modules:
        _load_alone()
    elif hasattr(sys.modules[HOME], "__getattr__"):
        _complete(sys.modules[HOME])
    return instrument()


def _load_alone() -> None:
    absent = [name for name in TWINS if name not in sys.modules and find_spec(name)]
    with _unseen(absent):
        module = importlib.import_module(HOME)
    if left := [name for name in absent if name not in sys.modules]:
        for name in left:
            delattr(module, TWINS[name])

        def ask(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            for twin in left:
                with suppress(ImportError):
                    importlib.import_module(twin)  # who waits for it may complete the module
            if hasattr(module, "__getattr__"):
                _complete(module)
            return getattr(module, name)

        vars(module)["__getattr__"] = ask


def _complete(module: ModuleType) -> None:
    """Load the module again, but for the classes that instrument already."""
    kept = {name: vars(module)[name] for name in TWINS.values() if name in vars(module)}
    del vars(module)["__getattr__"]
    importlib.reload(module)
    vars(module).update(kept)


@contextmanager
def _unseen(absent: list[str]) -> Iterator[None]:
    """Let `import_module` not find these, in this thread."""
    here, real = get_ident(), importlib.import_module

    def import_module(name: str, package: str | None = None) -> ModuleType:
        if name in absent and get_ident() == here:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, package)

    vars(importlib)["import_module"] = import_module
    try:
        yield
    finally:
        vars(importlib)["import_module"] = real
