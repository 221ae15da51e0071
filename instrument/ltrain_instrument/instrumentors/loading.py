"""Loads instrumentors: one per library, when the agent imports it; each failure is one warning.

An instrumentor imports the library that it instruments, which may take seconds, so ltrain loads it
when the agent imports that library.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import EntryPoint
from types import ModuleType

import wrapt

from ltrain_instrument.installation import install_command
from ltrain_instrument.instrumentors.choice import (
    InstrumentorChoice,
    library_of,
    recording_libraries,
)
from ltrain_instrument.instrumentors.library import Instrumentor, Library, find_function
from ltrain_instrument.settings import INSTRUMENTORS

_logger = logging.getLogger("ltrain.distro")

_INSTRUMENTOR_PACKAGES = ("opentelemetry", "openinference")
"""Top-level packages of instrumentors: if one of their modules is missing, the instrumentor is
broken."""

Load = Callable[[], object]


class InstrumentorLoader:
    """Loads the chosen instrumentors and skips the others."""

    def __init__(self, choices: Mapping[str, InstrumentorChoice]) -> None:
        self._choices = choices
        self._waiting: dict[str, list[tuple[Library, EntryPoint, Load]]] = {}
        self._loading: set[str] = set()

    def start(self) -> None:
        """Register import hooks that switch on built-in instrumentors and warn of missing ones."""
        for choice in self._choices.values():
            if choice.instrumentor is not None and choice.instrumentor.switch:
                for module_name in choice.library.modules:
                    wrapt.when_imported(module_name)(
                        partial(_switch_on, choice.library, choice.instrumentor)
                    )
            elif (
                choice.instrumentor is None
                and not choice.off
                and (choice.library.required or choice.rejected)
            ):
                for module_name in choice.library.modules:
                    wrapt.when_imported(module_name)(partial(self._warn_of_missing, choice))

    def add(self, entry: EntryPoint, load: Load) -> None:
        """Load an instrumentor now, or when its library is imported, or never if not chosen."""
        library = library_of(entry)
        if library is None:
            _try(entry, load, quiet=True)
        elif not self._choices[library.name].matches(entry):
            _logger.debug("%s is skipped: another is preferred", entry.value)
        elif not library.modules:
            _try(entry, load)
        else:
            self._waiting.setdefault(entry.module, []).append((library, entry, load))
            for module_name in library.modules:
                wrapt.when_imported(module_name)(partial(self._on_import, entry.module))

    def _warn_of_missing(self, choice: InstrumentorChoice, module: ModuleType) -> None:
        """Warn of a missing instrumentor, unless a framework in use records the calls."""
        recorders = recording_libraries(self._choices, choice.library.name)
        if choice.library.is_imported and not any(each.is_imported for each in recorders):
            _logger.warning("ltrain: %s", missing_instrumentor(choice))

    def _on_import(self, module_name: str, module: ModuleType) -> None:
        """Load what waits for a library; that may import another library and call this again."""
        if module_name in self._loading:
            return
        self._loading.add(module_name)
        try:
            while ready := self._ready(module_name):
                for library, entry, load in ready:
                    instrumentor = self._choices[library.name].instrumentor
                    with _absent(instrumentor.unneeded_modules if instrumentor else ()):
                        _try(entry, load)
        finally:
            self._loading.discard(module_name)

    def _ready(self, module_name: str) -> list[tuple[Library, EntryPoint, Load]]:
        waiting = self._waiting.get(module_name, [])
        ready = [each for each in waiting if each[0].is_imported]
        self._waiting[module_name] = [each for each in waiting if each not in ready]
        return ready


@contextmanager
def _absent(modules: Iterable[str]) -> Iterator[None]:
    """Let an import of these modules fail, where they are not imported."""
    blocked = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]  # None blocks an import
    try:
        yield
    finally:
        for name in blocked:
            sys.modules.pop(name, None)


def _try(entry: EntryPoint, load: Load, *, quiet: bool = False) -> None:
    try:
        load()
    except ModuleNotFoundError as error:
        missing_package = (error.name or "").partition(".")[0]
        if quiet and missing_package not in _INSTRUMENTOR_PACKAGES:
            _logger.debug("%s is skipped: %s", entry.value, error)
        else:
            _warn_of_failure(entry.name, entry.value, error)
    except Exception as error:  # third-party code: its errors must not stop the agent
        _warn_of_failure(entry.name, entry.value, error)


def _warn_of_failure(name: str, target: str, error: Exception) -> None:
    _logger.warning("ltrain: instrumentor '%s' (%s) failed and is skipped: %r", name, target, error)


def _switch_on(library: Library, instrumentor: Instrumentor, module: ModuleType) -> None:
    try:
        find_function(instrumentor.switch)()
    except Exception as error:  # third-party code of an unknown version
        _warn_of_failure(library.name, instrumentor.switch, error)


def missing_instrumentor(choice: InstrumentorChoice) -> str:
    """Return a sentence on a library without a usable instrumentor, with the fix."""
    library = choice.library
    if choice.rejected:
        reasons = "; ".join(f"{name}: {text}" for name, text in choice.rejected.items())
        return (
            f"{library.name} is used, but none of its instrumentors is usable ({reasons}): its "
            "calls leave no spans."
        )
    command = (
        install_command(library.extra)
        if library.extra
        else f"pip install {library.instrumentors[0].distribution}"
    )
    return (
        f"{library.name} is used, but its instrumentor is not installed: its calls leave no "
        f"spans. {command}, or {INSTRUMENTORS.name}={library.name}=none"
    )
