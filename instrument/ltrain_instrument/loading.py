"""Loads instrumentors: one a library, when the agent imports it, each failure one warning.

An instrumentor imports what it instruments, seconds of it, so it waits until the agent does.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint
from operator import attrgetter
from types import ModuleType

import wrapt

from ltrain_instrument.choice import Choice, known
from ltrain_instrument.instrumentors import Instrumentor, Library
from ltrain_instrument.settings import INSTRUMENTORS

_logger = logging.getLogger("ltrain.distro")

_THEIRS = ("opentelemetry", "openinference")
"""Packages of instrumentors: when one of them lacks a module, its framework is not to blame."""

Load = Callable[[], object]


class Loader:
    """Loads what was chosen and leaves the rest alone."""

    def __init__(self, choices: Mapping[str, Choice]) -> None:
        self._choices = choices
        self._waiting: dict[str, list[tuple[Library, EntryPoint, Load]]] = {}
        self._busy: set[str] = set()

    def start(self) -> None:
        """Switch on what is built in, and name what is missing, when a library is imported."""
        for choice in self._choices.values():
            if choice.taken is not None and choice.taken.switch:
                for target in choice.library.targets:
                    wrapt.when_imported(target)(partial(_switch_on, choice.library, choice.taken))
            elif choice.taken is None and not choice.off and (choice.library.needed or choice.left):
                for target in choice.library.targets:
                    wrapt.when_imported(target)(partial(_missing, choice))

    def add(self, entry: EntryPoint, load: Load) -> None:
        """Load one now, or when its library is imported, or, if another is preferred, never."""
        library = known(entry)
        if library is None:
            _try(entry, load, quiet=True)
        elif not self._choices[library.name].takes(entry):
            _logger.debug("%s is left out: another is preferred", entry.value)
        elif not library.targets:
            _try(entry, load)
        else:
            self._waiting.setdefault(entry.module, []).append((library, entry, load))
            for target in library.targets:
                wrapt.when_imported(target)(partial(self._arrived, entry.module))

    def _arrived(self, instrumentor: str, module: ModuleType) -> None:
        """Load what waits for a library; httpx's imports httpx2 too, so it may call itself."""
        if instrumentor in self._busy:
            return
        self._busy.add(instrumentor)
        try:
            while ready := self._ready(instrumentor):
                for _, entry, load in ready:
                    _try(entry, load)
        finally:
            self._busy.discard(instrumentor)

    def _ready(self, instrumentor: str) -> list[tuple[Library, EntryPoint, Load]]:
        waiting = self._waiting.get(instrumentor, [])
        ready = [one for one in waiting if one[0].imported]
        self._waiting[instrumentor] = [one for one in waiting if one not in ready]
        return ready


def _try(entry: EntryPoint, load: Load, *, quiet: bool = False) -> None:
    try:
        load()
    except ModuleNotFoundError as error:
        lacking = (error.name or "").partition(".")[0]
        if quiet and lacking not in _THEIRS:
            _logger.debug("%s is left out: %s", entry.value, error)
        else:
            _failed(entry.name, entry.value, error)
    except Exception as error:  # foreign code: what it raises must not stop the agent
        _failed(entry.name, entry.value, error)


def _failed(name: str, what: str, error: Exception) -> None:
    _logger.warning("ltrain: instrumentor '%s' (%s) failed and is left out: %r", name, what, error)


def _switch_on(library: Library, instrumentor: Instrumentor, module: ModuleType) -> None:
    try:
        switch(instrumentor)
    except Exception as error:  # foreign code, of another version than the one we know
        _failed(library.name, instrumentor.switch, error)


def switch(instrumentor: Instrumentor) -> None:
    """Switch a built-in instrumentor on."""
    home, _, path = instrumentor.switch.partition(":")
    attrgetter(path)(import_module(home))()


def missing(choice: Choice) -> str:
    """Say, of a library without a usable instrumentor, what mends it."""
    library = choice.library
    if choice.left:
        why = "; ".join(f"{name}: {text}" for name, text in choice.left.items())
        return f"{library.name} is used, but no instrumentor of it fits ({why}): no spans."
    package = f"ltrain[{library.extra}]" if library.extra else library.instrumentors[0].distribution
    return (
        f"{library.name} is used, but its instrumentor is not installed: its calls leave no "
        f"spans. pip install '{package}', or {INSTRUMENTORS.name}={library.name}=none"
    )


def _missing(choice: Choice, module: ModuleType) -> None:
    if choice.library.imported:
        _logger.warning("ltrain: %s", missing(choice))
