"""Loads OpenTelemetry's instrumentor of httpx and httpx2 without importing the unused library.

The instrumentor's module imports both libraries, and the unused one costs 0.2 s of CPU. Here the
module is loaded without it, and completed when the agent imports that library or asks for its
instrumentor.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from threading import get_ident
from types import ModuleType
from typing import Any

MODULE = "opentelemetry.instrumentation.httpx"

INSTRUMENTORS = {"httpx": "HTTPXClientInstrumentor", "httpx2": "HTTPX2ClientInstrumentor"}
"""The libraries, and the class that instruments each."""


def load_instrumentor(instrument: Callable[[], object]) -> object:
    """Call `instrument`, which loads an instrumentor of MODULE."""
    if MODULE not in sys.modules:
        _load_without_absent()
    elif hasattr(sys.modules[MODULE], "__getattr__"):
        _complete(sys.modules[MODULE])
    return instrument()


def _load_without_absent() -> None:
    absent = [name for name in INSTRUMENTORS if name not in sys.modules and find_spec(name)]
    with _hidden(absent):
        module = importlib.import_module(MODULE)
    if missing := [name for name in absent if name not in sys.modules]:
        for name in missing:
            delattr(module, INSTRUMENTORS[name])

        def get_attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            for library in missing:
                with suppress(ImportError):
                    importlib.import_module(library)  # an import hook may complete the module
            if hasattr(module, "__getattr__"):
                _complete(module)
            return getattr(module, name)

        vars(module)["__getattr__"] = get_attribute


def _complete(module: ModuleType) -> None:
    """Reload the module, but keep the classes that instrument already."""
    loaded = {name: vars(module)[name] for name in INSTRUMENTORS.values() if name in vars(module)}
    del vars(module)["__getattr__"]
    importlib.reload(module)
    vars(module).update(loaded)


@contextmanager
def _hidden(absent: list[str]) -> Iterator[None]:
    """Make `import_module` fail for these libraries, in this thread."""
    thread, original = get_ident(), importlib.import_module

    def import_module(name: str, package: str | None = None) -> ModuleType:
        if name in absent and get_ident() == thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, package)

    vars(importlib)["import_module"] = import_module
    try:
        yield
    finally:
        vars(importlib)["import_module"] = original
