"""Checks that need no network: settings, variables, instrumentors and the spool."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ltrain_instrument.delivery import SUFFIX
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.instrumentors.choice import (
    InstrumentorChoice,
    choose_instrumentors,
    disabled_instrumentations,
    recording_libraries,
    requested_providers,
    unknown_patch_names,
)
from ltrain_instrument.instrumentors.libraries import LIBRARIES
from ltrain_instrument.instrumentors.loading import missing_instrumentor
from ltrain_instrument.privacy import content
from ltrain_instrument.quantity import quantity
from ltrain_instrument.settings import (
    COUNT_LIMITS,
    DISABLED_PATCHES,
    INSTRUMENTORS,
    LENGTH_LIMITS,
    SERVICES,
    SETTINGS,
    SPOOL,
    is_invalid_limit,
)

MAX_WAITING_SECONDS = 60.0
"""Seconds that spans may wait on disk before it is a fault."""


class State(StrEnum):
    """The result of a check."""

    OK = "ok"
    """It is as it should be."""
    NOTE = "note"
    """It is missing or unusual, which matters only to some users."""
    FAULT = "fault"
    """Spans are lost, cut or not sent."""


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    state: State
    detail: str
    fix: str = ""


def format_findings(findings: list[Finding]) -> Iterator[str]:
    """Yield lines for a terminal, each fix below its fault."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        yield f"{finding.state:<5}  {finding.name:<{width}}  {finding.detail}"
        if finding.fix and finding.state is not State.OK:
            yield f"{'':<5}  {'':<{width}}  > {finding.fix}"
    faults = sum(finding.state is State.FAULT for finding in findings)
    yield f"{faults} faults" if faults > 1 else "1 fault" if faults else "all is well"


def is_healthy(findings: list[Finding]) -> bool:
    """Return whether no finding is a fault."""
    return all(finding.state is not State.FAULT for finding in findings)


def check_settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield ltrain's settings with invalid values."""
    for each in SETTINGS:
        try:
            each.read(environ)
        except BadSetting as error:
            if each is not INSTRUMENTORS:
                yield Finding(each.name, State.FAULT, str(error), f"Unset {each.name}.")
    for fault in requested_providers(environ)[1]:
        yield Finding(
            INSTRUMENTORS.name, State.FAULT, str(fault), "docs/instrumentors.md lists all."
        )
    for unknown in unknown_patch_names(environ):
        yield Finding(
            DISABLED_PATCHES.name, State.FAULT, str(unknown), "docs/process.md lists all."
        )


def check_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield OpenTelemetry's variables that prevent spans, or parts of them, from arriving."""
    for name in LENGTH_LIMITS:
        if name in environ:
            yield _variable_fault(environ, name, "texts and token ids are cut without a warning")
    for name in COUNT_LIMITS:
        value = environ.get(name)
        if value is not None and is_invalid_limit(value):
            yield _variable_fault(
                environ, name, "OpenTelemetry cannot be imported: the value must be an integer"
            )
        elif value and name in COUNT_LIMITS[:2] and int(value) < MIN_ATTRIBUTE_COUNT:
            yield _variable_fault(environ, name, "a long conversation loses its oldest messages")
    for name, values, reason in HARMFUL_VALUES:
        value = environ.get(name, "").strip().lower()
        if value and (value in values if values else True):
            yield _variable_fault(environ, name, reason)
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if sampler.startswith(PARENT_BASED) and sampler not in HARMFUL_SAMPLERS:
        yield Finding(
            "OTEL_TRACES_SAMPLER",
            State.NOTE,
            f"OTEL_TRACES_SAMPLER={sampler}: rollouts, rewards and model calls below a caller that "
            "does not sample (traceparent ...-00) are not recorded",
            _unset("OTEL_TRACES_SAMPLER"),
        )
    for name in ("OTEL_PYTHON_DISTRO", "OTEL_PYTHON_CONFIGURATOR"):
        if environ.get(name, "ltrain") != "ltrain":
            yield _variable_fault(environ, name, "another distro replaces ltrain's")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if environ.get(name, "") == "grpc":
            missing = (
                ""
                if _has_grpc_exporter()
                else ", and opentelemetry-exporter-otlp-proto-grpc is not installed"
            )
            yield _variable_fault(
                environ, name, f"spans do not wait on disk for a collector{missing}"
            )
    for name, off in CONTENT_SWITCHES:
        if environ.get(name, "").strip().lower() in off:
            yield Finding(
                name, State.NOTE, f"{name}={environ[name]}: messages are not recorded", _unset(name)
            )


MIN_ATTRIBUTE_COUNT = 10_000
"""Attributes of a span: a flattened message has up to ten."""
HARMFUL_SAMPLERS = (
    *("always_off", "traceidratio"),
    *("parentbased_always_off", "parentbased_traceidratio"),
)
HARMFUL_VALUES = (
    ("OTEL_SDK_DISABLED", ("true",), "nothing is recorded"),
    ("OTEL_TRACES_EXPORTER", ("none", "console"), "no span is sent to a collector"),
    ("OTEL_TRACES_SAMPLER", HARMFUL_SAMPLERS, "rollouts are recorded incompletely"),
    (
        "OTEL_CONFIG_FILE",
        (),
        "its exporters and its sampler replace ltrain's: spans do not wait on disk",
    ),
)
"""Variables, their harmful values (empty: any value), and the reason."""
PARENT_BASED = "parentbased_"
"""Beginning of the names of samplers that follow the caller."""
CONTENT_SWITCHES = (
    (content.SWITCH, ("false", "no_content", "event_only")),
    *((name, (value,)) for name, value in content.OTHER_SWITCHES.items()),
)
"""Variables that switch content off, with the values that do."""


def installed_choices(environ: Mapping[str, str]) -> dict[str, InstrumentorChoice]:
    """Return the choices for libraries that are installed here."""
    choices = choose_instrumentors(
        requested_providers(environ)[0], disabled_instrumentations(environ)
    )
    return {each.name: choices[each.name] for each in LIBRARIES if _version(each.distribution)}


def check_instrumentor(choices: Mapping[str, InstrumentorChoice], library_name: str) -> Finding:
    """Return which instrumentor a library has, and which ones are not used."""
    choice = choices[library_name]
    library, instrumentor = choice.library, choice.instrumentor
    name = f"{library.name} {_version(library.distribution)}"
    if choice.off:
        detail = "a setting switches its instrumentation off"
        if any(each.built_in and not each.switch for each in library.instrumentors):
            detail += "; the telemetry that is built into it stays on"
        return Finding(name, State.NOTE, detail)
    if instrumentor is None:
        if not library.required and not choice.rejected:
            return Finding(name, State.OK, "not instrumented, which is fine")
        fix = f"pip install {library.instrumentors[0].distribution}"
        recorders = [each.name for each in recording_libraries(choices, library.name)]
        if recorders and not choice.rejected:
            detail = f"not instrumented: only its calls by {', '.join(recorders)} leave spans"
            return Finding(name, State.NOTE, detail, fix)
        state = State.FAULT if library.required else State.NOTE
        return Finding(name, state, missing_instrumentor(choice), fix)
    description = (
        "built in"
        if instrumentor.built_in
        else f"{instrumentor.distribution} {_version(instrumentor.distribution)}"
    )
    reasons: dict[str, list[str]] = {}
    for other, reason in choice.rejected.items():
        reasons.setdefault(reason, []).append(other)
    rejected = [f"; not used, {reason}: {', '.join(others)}" for reason, others in reasons.items()]
    return Finding(name, State.OK, description + "".join(rejected))


def check_spool(home: Path) -> Iterator[Finding]:
    """Yield the spans that wait on disk, and those that the collector has refused."""
    yield from _spool("spool", home.absolute() / SPOOL)
    services = home.absolute() / SERVICES / SPOOL
    with suppress(OSError):  # `ltrain doctor` reports an unreadable home
        if services.exists():
            yield from _spool("service spool", services)


def _spool(name: str, directory: Path) -> Iterator[Finding]:
    try:
        waiting = [path.stat() for path in directory.glob(f"*{SUFFIX}")]
        refused = len(list((directory / "refused").glob(f"*{SUFFIX}")))
        damaged = len(list((directory / "damaged").glob(f"*{SUFFIX}")))
    except OSError as error:
        yield Finding(name, State.FAULT, f"{directory}: {error.strerror}", "Set LTRAIN_HOME.")
        return
    age = max((time.time() - each.st_mtime for each in waiting), default=0.0)
    size = sum(each.st_size for each in waiting) / (1 << 20)
    detail = f"{quantity(len(waiting), 'file')}, {size:.1f} MiB, waiting in {directory}"
    fix = "Once the collector is back, the next ltrain process with this LTRAIN_HOME sends them."
    if age > MAX_WAITING_SECONDS:
        yield Finding(name, State.FAULT, f"{detail}, the oldest {age / 60:.0f} minutes", fix)
    else:
        yield Finding(name, State.OK, detail if waiting else f"empty ({directory})")
    if refused:
        yield Finding(
            "refused",
            State.FAULT,
            f"{quantity(refused, 'file')} of refused spans in {directory / 'refused'}",
            f"Fix what it reported, then move them to {directory}.",
        )
    if damaged:
        yield Finding(
            "damaged",
            State.FAULT,
            f"{quantity(damaged, 'damaged file')} in {directory / 'damaged'}",
            "Their readable spans were sent. Delete them once you know what damaged them.",
        )


def _variable_fault(environ: Mapping[str, str], name: str, reason: str) -> Finding:
    return Finding(name, State.FAULT, f"{name}={environ[name]}: {reason}", _unset(name))


def _unset(name: str) -> str:
    return f"Unset {name}."


def _has_grpc_exporter() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.grpc") is not None
    except ModuleNotFoundError:
        return False


def _version(distribution: str) -> str:
    try:
        return version(distribution) if distribution else ""
    except PackageNotFoundError:
        return ""
