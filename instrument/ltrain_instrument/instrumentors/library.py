"""The record of a library: its instrumentors, its patch, and its extra of ltrain."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter

from ltrain_instrument.patches import Patch


def find_function(path: str) -> Callable[[], None]:
    """Import and return a function from its path `module:function`."""
    module_name, _, name = path.partition(":")
    function: Callable[[], None] = attrgetter(name)(import_module(module_name))
    return function


@dataclass(frozen=True, slots=True)
class Instrumentor:
    provider: str
    """Its name in LTRAIN_INSTRUMENTORS."""
    distribution: str
    """Its distribution on PyPI; if it is built in, the versions of the library that have it."""
    limitations: str
    """Data that it does not record, or its side effects."""
    built_in: bool = False
    switch: str = ""
    """module:function that switches a built-in instrumentor on; '' if it is on by default."""
    unneeded_packages: tuple[str, ...] = ()
    """Packages that it declares as instrumented but does not need."""
    unneeded_modules: tuple[str, ...] = ()
    """Modules that it would import and does not need; their importer handles an ImportError."""


@dataclass(frozen=True, slots=True)
class Library:
    name: str
    distribution: str
    """Its distribution on PyPI; '' for a module of Python itself."""
    modules: tuple[str, ...]
    """When the agent imports one of these modules, the instrumentor loads; none: at process
    start."""
    instrumentors: tuple[Instrumentor, ...]
    marker_module: str = ""
    """A module that is also loaded then, if other programs may have a module of the same name."""
    entry: str = ""
    """Name of the entry point, if one distribution instruments several libraries."""
    extra: str = ""
    """The extra of ltrain that installs the first instrumentor."""
    required: bool = True
    """Whether calls are not recorded without an instrumentor; then a missing one causes a
    warning."""
    records: tuple[str, ...] = ()
    """Clients whose calls by this library its instrumentors record: without instrumentors of their
    own, these clients cause no warning."""
    patch: Patch | None = None
    """ltrain's correction of the instrumentor's spans."""
    install_patch: str = ""
    """module:function that applies the patch, before the instrumentors load."""
    failed_result: str = ""
    """Pattern of the text that the framework returns to the model where a tool raised."""

    @property
    def is_imported(self) -> bool:
        """Return whether the agent has imported the library."""
        loaded = any(name in sys.modules for name in self.modules)
        return loaded and (not self.marker_module or self.marker_module in sys.modules)
