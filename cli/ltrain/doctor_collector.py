"""Checks of `ltrain doctor` on a running collector: its `/health`, its schema and the key.

Another OpenTelemetry collector has no `/health` of this form; its health is not checked.
"""

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode, urlsplit

from ltrain_collector import dsn, schema
from ltrain_instrument import attributes
from ltrain_instrument.delivery import traces_url
from ltrain_instrument.installation import upgrade_advice
from ltrain_instrument.instrumentors import Finding, State
from ltrain_instrument.quantity import quantity

MAX_LAG = 2.5
"""Seconds within which 95% of requests should be stored."""
GIBIBYTE = 1 << 30
MIN_FREE = GIBIBYTE
"""Bytes of a disk that must be free: merges rewrite the parts of a table."""
MIN_FREE_SHARE = 0.05
"""Share of a disk that should be free."""

CHECKED_SPANS = 100_000
"""Spans that the check of doubled calls reads at most."""

PERMANENT = ("malformed", "too_large", "unsupported", "budget")
"""Reasons of refusals that a client does not retry."""

Fault = tuple[State, str, str]
"""State, problem and fix."""


def health(timeout: float) -> Finding | None:
    """Check the health of the collector that agents send to; None if it does not report any."""
    base = traces_url().removesuffix("/v1/traces")
    try:
        status, text = fetch(f"{base}/health", timeout)
        answer: Any = json.loads(text) if status in (200, 503) else None
    except (OSError, HTTPException, ValueError):
        return None  # the check `collector` reports this
    if not isinstance(answer, dict) or "recent" not in answer:
        return None
    faults = list(health_faults(answer))
    if not faults:
        recent = answer["recent"]
        summary = f"{quantity(recent['requests'], 'request')} in five minutes, none refused"
        return Finding("health", State.OK, summary)
    worst = State.FAULT if any(state is State.FAULT for state, _, _ in faults) else State.NOTE
    fixes = " ".join(dict.fromkeys(fix for _, _, fix in faults))
    return Finding("health", worst, "; ".join(problem for _, problem, _ in faults), fixes)


def health_faults(answer: dict[str, Any]) -> Iterator[Fault]:
    """Yield the faults in an answer of `/health`."""
    recent, disk = answer["recent"], answer["disk"]
    log = "The log of `ltrain up` has the reasons."
    if answer.get("status", "ok") != "ok":
        yield State.FAULT, answer["status"], log
    refused = {reason: count for reason, count in recent["refused"].items() if count}
    if refused:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
        lost = any(reason in PERMANENT for reason in refused)
        fix = (
            "Requests that are malformed, too_large, unsupported or over their budget are lost: "
            "fix their sender, or raise its budget with LTRAIN_BOUND_LIMITS."
            if lost
            else "The senders retry. Raise the limits of the collector, or send smaller requests."
        )
        yield State.FAULT, f"requests refused in the last five minutes: {reasons}", fix
    if recent["rejected"]:
        fix = "partial_success tells their senders why: a wrong clock, invalid ids, or a key."
        yield (
            State.NOTE,
            f"{quantity(recent['rejected'], 'record')} rejected in the last five minutes",
            fix,
        )
    if recent["failures"]:
        yield (
            State.FAULT,
            f"{quantity(recent['failures'], 'insert')} failed in the last five minutes",
            log,
        )
    if recent["lag"] > MAX_LAG:
        problem = f"requests are stored after up to {recent['lag']:g} s"
        yield State.FAULT, problem, "The machine is busy: move other work away, or send less."
    if disk["free"] < max(MIN_FREE, MIN_FREE_SHARE * disk["size"]):
        state = State.FAULT if disk["free"] < MIN_FREE else State.NOTE
        problem = f"only {disk['free'] / GIBIBYTE:.2f} GiB of the store's disk are free"
        fix = "Remove old traces with `ltrain store prune --older-than DAYS`, or use a larger disk."
        yield state, problem, fix
    for name, target in answer.get("forward", {}).items():
        yield from _target_faults(name, target)
    if returned := answer.get("returned"):
        problem = f"{quantity(returned, 'request')} that it had forwarded came back"
        fix = "Its targets forward to it: remove one --forward of the ring."
        yield State.FAULT, problem, fix
    if answer["version"] != version("ltrain"):
        problem = f"it is ltrain {answer['version']}, this is {version('ltrain')}"
        yield State.NOTE, problem, f"Where the older one is: {upgrade_advice()}"


def _target_faults(name: str, target: dict[str, Any]) -> Iterator[Fault]:
    """Yield the faults of one target of `ltrain up --forward`."""
    log = "The log of `ltrain up` has the reasons."
    if target["away"]:
        waiting = f"{target['waiting_bytes'] / (1 << 20):.1f} MiB wait"
        yield State.FAULT, f"the target '{name}' does not accept requests, {waiting}", log
    if target["missing"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in target["missing"].items())
        fix = f"{log} Raise LTRAIN_FORWARD_LIMIT for longer outages."
        yield State.FAULT, f"requests that the target '{name}' misses: {reasons}", fix
    if target["rejected"]:
        rejected = quantity(target["rejected"], "record")
        yield State.NOTE, f"the target '{name}' rejected {rejected}", log


def store(server: dsn.Server, timeout: float) -> Finding | None:
    """Check the key and the schema version with one query; None if both are fine."""
    headers = {"X-ClickHouse-User": server.user, "X-ClickHouse-Key": server.password}
    status, answer = fetch(f"{server}/", timeout, schema.VERSION, headers)
    text = answer.decode(errors="replace").strip()
    if status in (401, 403):
        problem = "it refuses the key" if server.password else "it requires a key"
        fix = (
            "Make a key with `ltrain key make query`, and pass it as "
            "LTRAIN_STORE=http://any:KEY@host:8123."
        )
        return Finding("store", State.FAULT, f"{server}: {problem}", fix)
    fix = "Update an older store to this version with `ltrain store migrate`, once."
    if status != 200:
        return Finding("store", State.FAULT, f"{server}: {text.splitlines()[0][:200]}", fix)
    steps = len(schema.steps())
    if text.isdecimal() and int(text) != steps:
        problem = f"{server}: its schema has version {text}, this ltrain needs version {steps}"
        return Finding("store", State.FAULT, problem, fix)
    return None


def doubled_calls(server: dsn.Server, timeout: float) -> Finding | None:
    """Check whether two instrumentations of a process each made a trace of the same model calls.

    Calls are compared by response id, in the newest spans of a day. None: there are no such calls,
    or no connection to the store.
    """
    try:
        from ltrain_transforms.source import related_traces
    except ModuleNotFoundError:  # an agent's environment
        return None
    newest = "SELECT max(Timestamp) - INTERVAL 1 DAY FROM otel.spans"
    recent = (
        f"SELECT * FROM otel.spans WHERE Timestamp >= ({newest}) "
        f"ORDER BY Timestamp DESC LIMIT {CHECKED_SPANS}"
    )
    query = (
        "SELECT count(), arrayStringConcat(arraySort(groupUniqArrayArray(scopes)), ' and ') "
        f"FROM ({related_traces(f'FROM ({recent})', by_id=True)}) FORMAT TabSeparated"
    )
    if (answered := _query(server, timeout, query)) is None:
        return None
    status, text = answered
    if status != 200:
        problem = f"calls that were recorded twice were not searched: {text.splitlines()[0][:200]}"
        return Finding("doubled", State.NOTE, problem, "Run `ltrain doctor` again later.")
    count, _, scopes = text.partition("\t")
    if not scopes:
        return None
    calls = "1 model call was" if count == "1" else f"{count} model calls were"
    problem = (
        f"{calls} recorded twice in the last day with spans, in traces of their own by {scopes}; "
        "`ltrain build` merges them, other readers count them twice"
    )
    fix = (
        "Start the agent with ltrain's distro (unset OTEL_PYTHON_DISTRO and "
        "OTEL_PYTHON_CONFIGURATOR), or name one of the two libraries in "
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS."
    )
    return Finding("doubled", State.NOTE, problem, fix)


def unknown_calls(server: dsn.Server, timeout: float) -> Finding | None:
    """Check whether newest spans look like calls that no dialect reads; None if there are none."""
    try:
        from ltrain_transforms.calls import REMEDY, UnknownWriter, newest_spans, unknown_spans
    except ModuleNotFoundError:  # an agent's environment
        return None
    query = f"{unknown_spans(newest_spans())} LIMIT 1 FORMAT TabSeparated"
    answered = _query(server, timeout, query)
    if answered is None or answered[0] != 200 or not answered[1]:
        return None
    scope, version, count, names = answered[1].split("\t")
    writer = UnknownWriter(scope, version, int(count), names)
    return Finding("dialects", State.NOTE, writer.problem, f"{REMEDY.capitalize()}.")


def sends_tools(server: dsn.Server, policy: str, timeout: float) -> bool:
    """Return whether a stored call of a policy names tools; False if the store does not answer."""
    query = (
        f"SELECT 1 FROM otel.spans WHERE ScopeName = '{attributes.SCOPE_GATEWAY}' "
        "AND PolicyName = {policy:String} "
        "AND SpanAttributes['gen_ai.tool.definitions'] != '' LIMIT 1"
    )
    answered = _query(server, timeout, query, policy=policy)
    return answered is not None and answered[0] == 200 and bool(answered[1])


def _query(server: dsn.Server, timeout: float, sql: str, **params: str) -> tuple[int, str] | None:
    """Return status and text of a query; None without a connection, which `store` reports."""
    headers = {"X-ClickHouse-User": server.user, "X-ClickHouse-Key": server.password}
    named = urlencode({f"param_{name}": value for name, value in params.items()})
    try:
        status, answer = fetch(f"{server}/?{named}", timeout, sql, headers)
    except (OSError, HTTPException):
        return None
    return status, answer.decode(errors="replace").strip("\n")


def fetch(
    url: str, timeout: float, body: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Send a GET, or a POST with a body, and return status and body of the response."""
    parts = urlsplit(url)
    target = parts._replace(scheme="", netloc="").geturl()
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("POST" if body else "GET", target, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read(1 << 20)
    finally:
        connection.close()
