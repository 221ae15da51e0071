"""Selects the instrumentor of each library in this environment."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

from opentelemetry.instrumentation.dependencies import (
    DependencyConflict,
    get_dist_dependency_conflicts,
)
from packaging.requirements import Requirement

from ltrain_instrument.errors import BadSetting, LtrainError, UnknownName
from ltrain_instrument.instrumentors.libraries import LIBRARIES, PATCHES
from ltrain_instrument.instrumentors.library import Instrumentor, Library
from ltrain_instrument.patches import ALL
from ltrain_instrument.settings import DISABLED_PATCHES, INSTRUMENTORS

GROUP = "opentelemetry_instrumentor"
DISABLED = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
_DISABLED = f"{DISABLED} names it"
NONE = "none"
"""The provider in LTRAIN_INSTRUMENTORS that switches a library's instrumentation off."""


@dataclass(frozen=True, slots=True)
class InstrumentorChoice:
    library: Library
    instrumentor: Instrumentor | None
    entry: EntryPoint | None
    """The entry point that loads it; None if it is built in, or there is none."""
    rejected: Mapping[str, str]
    """Installed distributions that are not used, with the reason."""
    off: bool = False
    """Whether a setting switches the library's instrumentation off."""

    def matches(self, entry: EntryPoint) -> bool:
        """Return whether this choice is the entry point; two distributions may have equal ones."""
        own = self.entry
        if own is None or distribution_name(own) != distribution_name(entry):
            return False
        return (own.name, own.value) == (entry.name, entry.value)


def requested_providers(
    environ: Mapping[str, str] | None = None,
) -> tuple[dict[str, str], list[LtrainError]]:
    """Return the providers that LTRAIN_INSTRUMENTORS names, by library, and its errors."""
    try:
        pairs = INSTRUMENTORS.read(environ)
    except BadSetting as error:
        return {}, [error]
    requested: dict[str, str] = {}
    errors: list[LtrainError] = []
    providers = {
        each.name: {NONE, *(it.provider for it in each.instrumentors)} for each in LIBRARIES
    }
    for library, provider in pairs.items():
        if library not in providers:
            errors.append(UnknownName(f"library in {INSTRUMENTORS.name}", library, providers))
        elif provider not in providers[library]:
            kind = f"instrumentor of {library} in {INSTRUMENTORS.name}"
            errors.append(UnknownName(kind, provider, providers[library]))
        else:
            requested[library] = provider
    return requested, errors


def unknown_patch_names(environ: Mapping[str, str] | None = None) -> list[UnknownName]:
    """Return an error for each name in LTRAIN_DISABLED_PATCHES that no patch has."""
    names = [patch.name for patch in PATCHES]
    return [
        UnknownName(f"patch in {DISABLED_PATCHES.name}", name, names)
        for name in DISABLED_PATCHES.read(environ)
        if name not in (ALL, *names)
    ]


def disabled_instrumentations(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the names in OTEL_PYTHON_DISABLED_INSTRUMENTATIONS."""
    return frozenset(name.strip() for name in environ.get(DISABLED, "").split(",") if name.strip())


def is_switched_off(library: str) -> bool:
    """Return whether a setting switches the instrumentation of a library off."""
    return requested_providers()[0].get(library) == NONE or bool(
        disabled_instrumentations() & _off_names(library)
    )


def _off_names(library: str) -> set[str]:
    """Return what OTEL_PYTHON_DISABLED_INSTRUMENTATIONS may contain for a library."""
    return {"*", library, library.replace("-", "_")}


def choose_instrumentors(
    providers: Mapping[str, str], off: frozenset[str], entries: Iterable[EntryPoint] | None = None
) -> dict[str, InstrumentorChoice]:
    """Choose an instrumentor for every library that ltrain knows."""
    if entries is None:
        entries = entry_points(group=GROUP)
    by_distribution: dict[str, list[EntryPoint]] = {}
    for entry in entries:
        by_distribution.setdefault(distribution_name(entry), []).append(entry)
    return {
        each.name: _choose(each, providers.get(each.name, ""), off, by_distribution)
        for each in LIBRARIES
    }


def recording_libraries(
    choices: Mapping[str, InstrumentorChoice], client: str
) -> tuple[Library, ...]:
    """Return the libraries whose active instrumentors record the calls that they make by a client.

    Args:
        client: name of the client's library.
    """
    return tuple(
        each.library
        for each in choices.values()
        if each.instrumentor is not None and client in each.library.records
    )


def entry_points_to_load(choices: Mapping[str, InstrumentorChoice]) -> list[EntryPoint]:
    """Return chosen entry points that OpenTelemetry's loader skips.

    It skips them because a package is missing that they declare but do not need.
    """
    return [
        each.entry
        for each in choices.values()
        if each.entry is not None
        and each.entry.dist is not None
        and each.instrumentor is not None
        and each.instrumentor.unneeded_packages
        and get_dist_dependency_conflicts(each.entry.dist) is not None
    ]


def distribution_name(entry: EntryPoint) -> str:
    """Return the normalised name of the distribution that provides an entry point."""
    name = entry.dist.name if entry.dist else ""
    return re.sub(r"[-_.]+", "-", name).lower()


def library_of(entry: EntryPoint) -> Library | None:
    """Return the library that an entry point instruments; None if ltrain does not know it."""
    name = distribution_name(entry)
    for each in LIBRARIES:
        if any(not it.built_in and it.distribution == name for it in each.instrumentors) and (
            each.entry in ("", entry.name)
        ):
            return each
    return None


def known_entry_point_names() -> frozenset[str]:
    """Return the names of the installed entry points among which ltrain chooses."""
    return frozenset(it.name for it in entry_points(group=GROUP) if library_of(it) is not None)


def _choose(
    library: Library, provider: str, off: frozenset[str], installed: Mapping[str, list[EntryPoint]]
) -> InstrumentorChoice:
    instrumentor: Instrumentor | None = None
    chosen_entry: EntryPoint | None = None
    rejected: dict[str, str] = {}
    switched_off = provider == NONE or bool(off & _off_names(library.name))
    for each in sorted(library.instrumentors, key=lambda it: it.provider != provider):
        entry = _find_entry_point(library, each, installed)
        if entry is None and not each.built_in:
            continue
        reason = _rejection_reason(each, entry, off)
        if reason is None:
            continue
        if switched_off and not reason:
            reason = f"{INSTRUMENTORS.name} or {DISABLED} switches the library off"
        if not reason and instrumentor is not None:
            reason = f"{instrumentor.provider} is preferred"
        if reason:
            rejected[each.distribution] = reason
        else:
            instrumentor, chosen_entry = each, entry
    off_by_name = bool(rejected) and set(rejected.values()) == {_DISABLED} and instrumentor is None
    return InstrumentorChoice(
        library, instrumentor, chosen_entry, rejected, switched_off or off_by_name
    )


def _find_entry_point(
    library: Library, each: Instrumentor, installed: Mapping[str, list[EntryPoint]]
) -> EntryPoint | None:
    entries = installed.get(each.distribution, ())
    return next((it for it in entries if library.entry in ("", it.name)), None)


def _rejection_reason(
    each: Instrumentor, entry: EntryPoint | None, off: frozenset[str]
) -> str | None:
    """Return why an instrumentor is unusable; '' if usable, None if its library is missing."""
    if each.built_in:
        return "" if _is_installed(Requirement(each.distribution)) else None
    if entry is None or entry.dist is None:
        return None
    if off & {"*", entry.name}:
        return _DISABLED
    conflict = get_dist_dependency_conflicts(entry.dist)
    if conflict is None or _lacks_only_unneeded(each, conflict):
        return ""
    return str(conflict) if conflict.found or getattr(conflict, "found_any", None) else None


def _lacks_only_unneeded(each: Instrumentor, conflict: DependencyConflict) -> bool:
    missing = Requirement(str(conflict.required)).name if conflict.required else ""
    return missing in each.unneeded_packages and not conflict.found


def _is_installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False
