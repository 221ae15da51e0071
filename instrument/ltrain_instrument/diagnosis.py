"""What can be told without asking anybody: settings, variables, instrumentors, the spool."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ltrain_instrument.choice import Choice, choices, disabled, wanted
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.instrumentors import LIBRARIES
from ltrain_instrument.loading import missing
from ltrain_instrument.otel_limits import COUNTS, LENGTHS, misspelt
from ltrain_instrument.segment import SUFFIX
from ltrain_instrument.settings import INSTRUMENTORS, SERVICES, SETTINGS

FRESH = 60.0
"""Seconds that spans may wait on disk before it is a fault."""


class State(StrEnum):
    """How something is."""

    OK = "ok"
    """As it must be."""
    NOTE = "note"
    """Not there, or unusual, and not needed by everybody."""
    FAULT = "fault"
    """Spans are lost, cut or not sent."""


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    state: State
    found: str
    mend: str = ""


def settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Name the settings of ltrain that cannot be read."""
    for each in SETTINGS:
        try:
            each.read(environ)
        except BadSetting as error:
            if each is not INSTRUMENTORS:
                yield Finding(each.name, State.FAULT, str(error), f"Unset {each.name}.")
    for fault in wanted(environ)[1]:
        yield Finding(INSTRUMENTORS.name, State.FAULT, str(fault), "docs/instrumentors.md has all.")


def variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Name the variables of OpenTelemetry's that keep spans, or parts of them, from arriving."""
    for name in LENGTHS:
        if name in environ:
            yield _set(environ, name, "texts and token ids are cut in silence")
    for name in COUNTS:
        value = environ.get(name)
        if value is not None and misspelt(value):
            yield _set(environ, name, "OpenTelemetry cannot be imported: it wants an integer")
        elif value and name in COUNTS[:2] and int(value) < ENOUGH:
            yield _set(environ, name, "a long conversation loses its oldest messages")
    for name, wrong, why in WRONG:
        value = environ.get(name, "").strip().lower()
        if value and (value in wrong if wrong else True):
            yield _set(environ, name, why)
    for name in ("OTEL_PYTHON_DISTRO", "OTEL_PYTHON_CONFIGURATOR"):
        if environ.get(name, "ltrain") != "ltrain":
            yield _set(environ, name, "another distro takes ltrain's place")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if environ.get(name, "") == "grpc":
            lacks = "" if _grpc() else ", and opentelemetry-exporter-otlp-proto-grpc is not here"
            yield _set(environ, name, f"spans do not wait on disk for a collector{lacks}")
    for name, off in CONTENT:
        if environ.get(name, "").strip().lower() in off:
            yield Finding(
                name, State.NOTE, f"{name}={environ[name]}: messages are not recorded", _unset(name)
            )


ENOUGH = 10_000
"""Attributes of a span: a message flattened takes up to ten."""
WRONG = (
    ("OTEL_SDK_DISABLED", ("true",), "nothing is recorded"),
    ("OTEL_TRACES_EXPORTER", ("none", "console"), "no span is sent to a collector"),
    (
        "OTEL_TRACES_SAMPLER",
        ("always_off", "traceidratio", "parentbased_always_off", "parentbased_traceidratio"),
        "rollouts are not recorded whole",
    ),
    ("OTEL_CONFIG_FILE", (), "its exporters take the place of ltrain's: spans do not wait on disk"),
)
"""Variables, their values that are wrong (none: any), and why."""
CONTENT = (
    ("TRACELOOP_TRACE_CONTENT", ("false",)),
    (
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
        ("false", "no_content", "event_only"),
    ),
    ("OPENINFERENCE_HIDE_INPUTS", ("true",)),
    ("OPENINFERENCE_HIDE_OUTPUTS", ("true",)),
)


def chosen(environ: Mapping[str, str]) -> dict[str, Choice]:
    """Return the choices for libraries that are installed here."""
    found = choices(wanted(environ)[0], disabled(environ))
    return {each.name: found[each.name] for each in LIBRARIES if _version(each.distribution)}


def instrumentor(choice: Choice) -> Finding:
    """Return who instruments a library, and who is left out."""
    library, taken = choice.library, choice.taken
    name = f"{library.name} {_version(library.distribution)}"
    if choice.off:
        return Finding(name, State.NOTE, "a setting says that it is not instrumented")
    if taken is None:
        if not library.needed and not choice.left:
            return Finding(name, State.OK, "not instrumented; nothing needs it")
        mend = f"pip install {library.instrumentors[0].distribution}"
        return Finding(name, State.FAULT if library.needed else State.NOTE, missing(choice), mend)
    maker = "built in" if taken.built_in else f"{taken.distribution} {_version(taken.distribution)}"
    reasons: dict[str, list[str]] = {}
    for other, why in choice.left.items():
        reasons.setdefault(why, []).append(other)
    left = [f"; left out, {why}: {', '.join(others)}" for why, others in reasons.items()]
    return Finding(name, State.OK, maker + "".join(left))


def spool(home: Path) -> Iterator[Finding]:
    """Yield what waits on disk for the collector, and what the collector has refused."""
    yield from _spool("spool", home.absolute() / "spool")
    services = home.absolute() / SERVICES / "spool"
    with suppress(OSError):  # a home that may not be entered is named above
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
    found = f"{len(waiting)} files, {size:.1f} MiB, wait for the collector in {directory}"
    mend = "Once the collector is back, the next ltrain process with this LTRAIN_HOME sends them."
    if age > FRESH:
        yield Finding(name, State.FAULT, f"{found}, the oldest {age / 60:.0f} minutes", mend)
    else:
        yield Finding(name, State.OK, found if waiting else f"empty ({directory})")
    if refused:
        yield Finding(
            "refused",
            State.FAULT,
            f"{refused} files of spans that the collector refused are in {directory / 'refused'}",
            f"Mend what it complained of, then move them to {directory}.",
        )
    if damaged:
        yield Finding(
            "damaged",
            State.FAULT,
            f"{damaged} spool files with damage are in {directory / 'damaged'}",
            "Their whole spans were sent. Delete them once you know what damaged them.",
        )


def _set(environ: Mapping[str, str], name: str, why: str) -> Finding:
    return Finding(name, State.FAULT, f"{name}={environ[name]}: {why}", _unset(name))


def _unset(name: str) -> str:
    return f"Unset {name}."


def _grpc() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.grpc") is not None
    except ModuleNotFoundError:
        return False


def _version(distribution: str) -> str:
    try:
        return version(distribution) if distribution else ""
    except PackageNotFoundError:
        return ""
