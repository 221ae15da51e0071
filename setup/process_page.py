"""The page on what ltrain changes in an agent's process."""

from collections.abc import Iterator

from setup.markdown import code, table

from ltrain_instrument import distro
from ltrain_instrument.instrumentors import LIBRARIES, PATCHES, choice
from ltrain_instrument.patches import ALL, LOG_FILTERS, WORKER_EXIT, Patch
from ltrain_instrument.privacy import content
from ltrain_instrument.settings import (
    DISABLED_PATCHES,
    HOME,
    INSTRUMENTORS,
    OTLP_ENDPOINT,
    POLICY_URLS,
    REDACT,
)

SDK_SWITCH = "`OTEL_SDK_DISABLED=true`"
LIBRARY_SWITCHES = f"`{INSTRUMENTORS.name}=NAME=none` or `{choice.DISABLED}=NAME`"

OTHER_CHANGES = (
    (
        "Instrumentors wrap functions of the libraries that they instrument "
        "([instrumentors.md](instrumentors.md)), also `threading` and its pools.",
        "They record the calls, and pass the context to threads.",
        LIBRARY_SWITCHES,
    ),
    (
        "Where the agent imports httpx2 and not httpx, httpx is imported without its command line "
        "(`httpx.main`).",
        "The instrumentor of httpx2 imports httpx, whose command line imports rich and click.",
        LIBRARY_SWITCHES.replace("NAME", "httpx2"),
    ),
    (
        "`Agent.instrument_all()` of pydantic-ai is called.",
        "Without it, pydantic-ai records nothing.",
        LIBRARY_SWITCHES.replace("NAME", "pydantic-ai"),
    ),
    (
        "The telemetry of semantic-kernel is switched on, in three of its modules, unless one of "
        "its own variables decides.",
        "Without it, semantic-kernel records nothing.",
        LIBRARY_SWITCHES.replace("NAME", "semantic-kernel"),
    ),
    (
        "OpenTelemetry's global tracer provider is ltrain's. If the agent has set one before "
        "`ltrain.configure()`, it gets ltrain's processors instead.",
        "Spans get identity and counts, and reach the collector.",
        SDK_SWITCH,
    ),
    (
        "`sys.meta_path` has an import hook of `wrapt`.",
        "Libraries are patched when the agent imports them, not earlier.",
        SDK_SWITCH,
    ),
    (
        "`os.register_at_fork` has callbacks for the child.",
        "A forked child has its own spool and counts; otherwise it would end and send the open "
        "spans of its parent.",
        SDK_SWITCH,
    ),
    (
        "The daemon thread `ltrain-spool` runs; `ltrain-flush` runs during a flush.",
        "Spans are sent without delay to the agent.",
        SDK_SWITCH,
    ),
    (
        "The trace and the baggage of `TRACEPARENT`, `TRACESTATE` and `BAGGAGE` are the context "
        "of the main thread.",
        "The process continues the trace of its parent.",
        "unset the variables",
    ),
)
"""Changes that are no patches: what, why and the switch."""


def process_lines() -> Iterator[str]:
    """Yield the paragraphs of the page."""
    yield "# What ltrain changes in your process"
    yield (
        "`opentelemetry-instrument` and `ltrain.configure()` change the agent's process as this "
        "page lists, and in no other way: `warnings`, `sys.excepthook`, standard streams and the "
        f"levels and handlers of loggers stay. {SDK_SWITCH} leaves everything unchanged, except "
        "the two variables with which `opentelemetry-instrument` finds ltrain, the patch "
        f"`{LOG_FILTERS.name}` and, in workers, `{WORKER_EXIT.name}`."
    )
    named = ", ".join(code(each.patch.name) for each in LIBRARIES if each.patch)
    yield "## Patches"
    yield (
        f"`{DISABLED_PATCHES.name}=subprocess,signals` switches patches off by their names; "
        f"`{ALL}` switches all of them off. An unknown name is one warning, `ltrain doctor` "
        "reports it, and the other names apply. Functions of a library are patched when the agent "
        f"imports it. The patches of `httpx`, `aiohttp` and `requests` need `{POLICY_URLS.name}`; "
        f"those of {named} are also switched off by {LIBRARY_SWITCHES}, with their name."
    )
    yield table(
        ("name", "changes", "what happens", "without it"),
        ((code(each.name), _changed(each), each.change, _without(each)) for each in PATCHES),
    )
    yield "## Environment variables"
    yield (
        "ltrain sets these variables of the process if the environment does not. To switch one "
        "off, set it to the value that you want."
    )
    yield table(
        ("variable", "value"),
        ((code(name), code(value)) for name, value in distro.DEFAULTS.items()),
    )
    others = ", ".join(f"`{name}={value}`" for name, value in content.OTHER_SWITCHES.items())
    others += f", and `{content.UNREDACTED}` is added to `{content.OPT_IN}`"
    yield (
        "- `OTEL_PYTHON_DISTRO` and `OTEL_PYTHON_CONFIGURATOR` are `ltrain`, in the launcher.\n"
        f"- `{OTLP_ENDPOINT.name}` is the address of the running `ltrain up` of `{HOME.name}`, if "
        "there is one.\n"
        f"- If `{content.SWITCH}` excludes content: {others}.\n"
        "- A limit of OpenTelemetry's that is not a number is removed, with a warning: its SDK "
        "could not be imported.\n"
        f"- If `{REDACT.name}` is set, `OTEL_LOGS_EXPORTER` becomes `none`, with a warning: only "
        "spans are redacted."
    )
    yield "## Other changes"
    yield table(("what", "why", "switch"), OTHER_CHANGES)


def _changed(patch: Patch) -> str:
    targets = [code(target.replace(":", ".")) for target in patch.targets]
    return ", ".join(targets) or patch.adds


def _without(patch: Patch) -> str:
    reason = patch.reason.removeprefix("Without it, ")
    return reason[0].upper() + reason[1:]
