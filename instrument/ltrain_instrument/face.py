"""Faces: a package's `__init__.py` declares its public names; each is imported on its first use.

A face has its imports in one `if TYPE_CHECKING:` block, where type checkers and readers find them,
and ends with `open_face(__name__)`. To import a folder costs as little as to import nothing; to
import a name costs the module that defines it.
"""

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any


def open_face(name: str) -> None:
    """Let the package `name` import what its `TYPE_CHECKING` block declares on first use (PEP 562).

    Its `__all__` becomes the declared names.
    """
    package = sys.modules[name]
    package.__dict__["_origins"] = dict(_declarations(package))
    package.__dict__["__all__"] = sorted(package.__dict__["_origins"])
    package.__class__ = _Face


class _Face(ModuleType):
    _origins: dict[str, str]
    """The module of each public name."""

    def __getattr__(self, name: str) -> Any:
        if name not in self._origins:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        origin = import_module(self._origins[name])
        self.__dict__[name] = value = (
            import_module(f"{origin.__name__}.{name}") if origin is self else getattr(origin, name)
        )
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # the import of the module `build` would hide the function `build` of that module
        is_hidden = self._origins.get(name, self.__name__) != self.__name__
        if not (is_hidden and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._origins})


def _declarations(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield each name that is imported in the face's `TYPE_CHECKING` block, and its module."""
    loader = package.__spec__.loader if package.__spec__ else None
    source = loader.get_source(package.__name__)  # type: ignore[union-attr]
    for node in ast.parse(source).body:
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING"), body=imports):
                for each in imports:
                    if isinstance(each, ast.ImportFrom) and each.module:
                        yield from ((alias.name, each.module) for alias in each.names)
