"""Which instrumentor a library gets in this environment, and why the others are left out."""

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
from ltrain_instrument.instrumentors import LIBRARIES, Instrumentor, Library
from ltrain_instrument.settings import INSTRUMENTORS

GROUP = "opentelemetry_instrumentor"
DISABLED = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
_DISABLED = f"{DISABLED} names it"
NONE = "none"
"""As a maker in LTRAIN_INSTRUMENTORS: nobody."""


@dataclass(frozen=True, slots=True)
class Choice:
    library: Library
    taken: Instrumentor | None
    entry: EntryPoint | None
    """What loads it; None where it is built in, or nobody is taken."""
    left: Mapping[str, str]
    """Distributions that are installed and left out, with the reason."""
    off: bool = False
    """Whether a setting says that the library is not instrumented."""

    def takes(self, entry: EntryPoint) -> bool:
        """Say whether it is this one; two distributions may have equal entry points."""
        chosen = self.entry
        if chosen is None or distribution(chosen) != distribution(entry):
            return False
        return (chosen.name, chosen.value) == (entry.name, entry.value)


def wanted(environ: Mapping[str, str] | None = None) -> tuple[dict[str, str], list[LtrainError]]:
    """Give the makers that LTRAIN_INSTRUMENTORS names, by library, and what is wrong with it."""
    try:
        named = INSTRUMENTORS.read(environ)
    except BadSetting as error:
        return {}, [error]
    found: dict[str, str] = {}
    faults: list[LtrainError] = []
    makers = {each.name: {NONE, *(it.maker for it in each.instrumentors)} for each in LIBRARIES}
    for library, maker in named.items():
        if library not in makers:
            faults.append(UnknownName(f"library in {INSTRUMENTORS.name}", library, makers))
        elif maker not in makers[library]:
            kind = f"instrumentor of {library} in {INSTRUMENTORS.name}"
            faults.append(UnknownName(kind, maker, makers[library]))
        else:
            found[library] = maker
    return found, faults


def disabled(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Give the names in OTEL_PYTHON_DISABLED_INSTRUMENTATIONS."""
    return frozenset(name.strip() for name in environ.get(DISABLED, "").split(",") if name.strip())


def choices(
    makers: Mapping[str, str], off: frozenset[str], entries: Iterable[EntryPoint] | None = None
) -> dict[str, Choice]:
    """Choose for every library that ltrain knows."""
    if entries is None:
        entries = entry_points(group=GROUP)
    by_distribution: dict[str, list[EntryPoint]] = {}
    for entry in entries:
        by_distribution.setdefault(distribution(entry), []).append(entry)
    return {
        each.name: _choose(each, makers.get(each.name, ""), off, by_distribution)
        for each in LIBRARIES
    }


def unoffered(made: Mapping[str, Choice]) -> list[EntryPoint]:
    """Give what is taken, and OpenTelemetry's loader leaves out: it lacks a needless package."""
    return [
        each.entry
        for each in made.values()
        if each.entry is not None
        and each.entry.dist is not None
        and each.taken is not None
        and each.taken.needless
        and get_dist_dependency_conflicts(each.entry.dist) is not None
    ]


def distribution(entry: EntryPoint) -> str:
    """Give the name of the distribution that an entry point comes with, as PyPI writes it."""
    name = entry.dist.name if entry.dist else ""
    return re.sub(r"[-_.]+", "-", name).lower()


def known(entry: EntryPoint) -> Library | None:
    """Give the library that an entry point instruments; None where ltrain does not know it."""
    name = distribution(entry)
    for each in LIBRARIES:
        if any(not it.built_in and it.distribution == name for it in each.instrumentors) and (
            each.entry in ("", entry.name)
        ):
            return each
    return None


def entry_names() -> frozenset[str]:
    """Give the names of the installed entry points that ltrain chooses among."""
    return frozenset(it.name for it in entry_points(group=GROUP) if known(it) is not None)


def _choose(
    library: Library,
    maker: str,
    off: frozenset[str],
    installed: Mapping[str, list[EntryPoint]],
) -> Choice:
    taken: Instrumentor | None = None
    chosen: EntryPoint | None = None
    left: dict[str, str] = {}
    names = {"*", library.name, library.name.replace("-", "_")}
    switched_off = maker == NONE or bool(off & names)
    for each in sorted(library.instrumentors, key=lambda it: it.maker != maker):
        entry = _entry(library, each, installed)
        if entry is None and not each.built_in:
            continue
        why = _unfit(each, entry, off)
        if why is None:
            continue
        if switched_off and not why:
            why = f"{INSTRUMENTORS.name} or {DISABLED} switches the library off"
        if not why and taken is not None:
            why = f"{taken.maker} is preferred"
        if why:
            left[each.distribution] = why
        else:
            taken, chosen = each, entry
    off_by_name = bool(left) and set(left.values()) == {_DISABLED} and taken is None
    return Choice(library, taken, chosen, left, switched_off or off_by_name)


def _entry(
    library: Library, each: Instrumentor, installed: Mapping[str, list[EntryPoint]]
) -> EntryPoint | None:
    entries = installed.get(each.distribution, ())
    return next((it for it in entries if library.entry in ("", it.name)), None)


def _unfit(each: Instrumentor, entry: EntryPoint | None, off: frozenset[str]) -> str | None:
    """Say why one cannot be taken; '' when it can, None when its library is not there at all."""
    if each.built_in:
        return "" if _there(Requirement(each.distribution)) else None
    if entry is None or entry.dist is None:
        return None
    if off & {"*", entry.name}:
        return _DISABLED
    conflict = get_dist_dependency_conflicts(entry.dist)
    if conflict is None or _lacks_needless(each, conflict):
        return ""
    return str(conflict) if conflict.found or getattr(conflict, "found_any", None) else None


def _lacks_needless(each: Instrumentor, conflict: DependencyConflict) -> bool:
    lacking = Requirement(str(conflict.required)).name if conflict.required else ""
    return lacking in each.needless and not conflict.found


def _there(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False
