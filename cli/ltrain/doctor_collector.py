"""What `ltrain doctor` asks a running collector: how it does at `/health`, and who we are to it.

A collector of another make has no `/health` of this form, and is not judged by it.
"""

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from ltrain_collector import dsn, schema
from ltrain_instrument.delivery import traces_url
from ltrain_instrument.diagnosis import Finding, State

LAG = 2.5
"""Seconds in which 95 of 100 requests should be stored."""
FREE = 1 << 30
SHARE = 0.05
"""Bytes of a disk, and its part, that should be free: merges write a table's parts anew."""

ENDED = ("malformed", "too_large", "unsupported")
"""Why a request is refused for ever: its client gives up."""

Fault = tuple[State, str, str]
"""How bad, what, and what mends it."""


def health(timeout: float) -> Finding | None:
    """Say how the collector does that agents send to; None where it has nothing to say."""
    base = traces_url().removesuffix("/v1/traces")
    try:
        status, text = fetch(f"{base}/health", timeout)
        told: Any = json.loads(text) if status in (200, 503) else None
    except (OSError, HTTPException, ValueError):
        return None  # who takes spans there was asked already
    if not isinstance(told, dict) or "recent" not in told:
        return None
    faults = list(judged(told))
    if not faults:
        recent = told["recent"]
        found = f"{recent['requests']} requests in five minutes, none refused"
        return Finding("health", State.OK, found)
    worst = State.FAULT if any(state is State.FAULT for state, _, _ in faults) else State.NOTE
    mends = " ".join(dict.fromkeys(mend for _, _, mend in faults))
    return Finding("health", worst, "; ".join(found for _, found, _ in faults), mends)


def judged(told: dict[str, Any]) -> Iterator[Fault]:
    """Give what is wrong by what `/health` tells."""
    recent, disk = told["recent"], told["disk"]
    log = "The log of `ltrain up` has the reasons."
    if told.get("status", "ok") != "ok":
        yield State.FAULT, told["status"], log
    refused = {reason: count for reason, count in recent["refused"].items() if count}
    if refused:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
        lost = any(reason in ENDED for reason in refused)
        mend = (
            "What is malformed, too_large or unsupported is lost: mend its sender."
            if lost
            else "Its senders try again; give the collector more room, or send less at a time."
        )
        yield State.FAULT, f"requests refused in the last five minutes: {reasons}", mend
    if recent["rejected"]:
        mend = "Their senders hear why in partial_success: a wrong clock, ids that are none, a key."
        yield State.NOTE, f"{recent['rejected']} records rejected in the last five minutes", mend
    if recent["failures"]:
        yield State.FAULT, f"{recent['failures']} inserts failed in the last five minutes", log
    if recent["lag"] > LAG:
        found = f"requests are stored after as much as {recent['lag']:g} s"
        yield State.FAULT, found, "Its machine is busy: move other work, or send less."
    if disk["free"] < FREE or disk["free"] < SHARE * disk["size"]:
        found = f"{disk['free'] / FREE:.2f} GiB of the store's disk are free"
        mend = "`ltrain store prune --older-than DAYS` makes room, or a larger disk does."
        yield State.FAULT, found, mend
    if told["version"] != version("ltrain"):
        found = f"it is ltrain {told['version']}, this is {version('ltrain')}"
        yield State.NOTE, found, "pip install --upgrade ltrain where it is older."


def store(server: dsn.Server, timeout: float) -> Finding | None:
    """Say what a query meets: a key that is missing or wrong, tables of another version."""
    sent = {"X-ClickHouse-User": server.user, "X-ClickHouse-Key": server.password}
    status, answer = fetch(f"{server}/", timeout, schema.VERSION, sent)
    text = answer.decode(errors="replace").strip()
    if status in (401, 403):
        known = "LTRAIN_STORE=http://any:KEY@host:8123; `ltrain key make query` makes one."
        found = "its key is not taken" if server.password else "it wants a key"
        return Finding("store", State.FAULT, f"{server}: {found}", f"Give it as {known}")
    mend = "`ltrain store migrate` brings an older one to this version, once."
    if status != 200:
        return Finding("store", State.FAULT, f"{server}: {text.splitlines()[0][:200]}", mend)
    steps = len(schema.steps())
    if text.isdecimal() and int(text) != steps:
        found = f"{server}: its tables are of version {text}, this ltrain's are of {steps}"
        return Finding("store", State.FAULT, found, mend)
    return None


def fetch(
    url: str, timeout: float, body: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Return status and body of what an address answers; with a body it is a POST."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("POST" if body else "GET", parts.path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20)
    finally:
        connection.close()
