"""Budgets of senders: what a key may send in a minute and in all, and the reserve of the disk.

* Keys of ltrain's own processes, of its owner and of admins have no budget, and may fill the disk.
* The key of a run has no budget of a minute or in all, only limits of a request and of a record.
* The budget of a minute is a bucket that fills evenly: a sender that has used it up gets 429 with
  the seconds after which its request fits.
* A request that never fits gets 413: one above the size of a request or of a whole minute, and each
  one after all that its key may store.
* A log record says what the sender of a rollout or a run was refused, at most once a minute.
* Counts are in memory: they start again with the server.
"""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ltrain_collector.access import COLLECTOR_SERVICE, TRUSTED_SENDERS, Grant, Shape
from ltrain_collector.errors import OtlpError, OverBudget, OverMinute, ReservedDisk, TooLarge
from ltrain_collector.http import too_large
from ltrain_instrument.disk import read_disk
from ltrain_instrument.quantity import quantity
from ltrain_instrument.settings import BOUND_LIMITS, INGEST_LIMITS, Setting

MAX_KEYS = 1 << 16
"""Number of keys whose use is remembered; beyond it, that of the least recent one is forgotten."""

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """The limits of one kind of sender; 0 means no limit."""

    setting: str = ""
    """The environment variable that sets them."""
    minute: int = 0
    """MiB in a minute."""
    records: int = 0
    """Spans, log records and data points in a minute."""
    total: int = 0
    """MiB in all."""
    request: int = 0
    """MiB of one request, decompressed."""
    attributes: int = 0
    """Attributes of a span or a log record."""
    events: int = 0
    """Events of a span."""
    links: int = 0
    """Links of a span."""

    @classmethod
    def from_environment(cls, setting: Setting[dict[str, int]]) -> "IngestLimits":
        """Return the limits from the environment and, for those that it leaves out, the defaults.

        Raises:
            BadSetting: the variable is invalid.
        """
        return cls(setting.name, **{**setting.read_as(setting.default), **setting.read()})

    @property
    def shape(self) -> Shape:
        """The largest record."""
        return Shape(self.attributes, self.events, self.links)

    def how_to_raise(self, limit: str) -> str:
        """Return how to raise a limit, as the end of a sentence."""
        value = int(getattr(self, limit))
        return (
            f"raise the limit with {self.setting}={limit}={2 * value} in the environment of "
            "`ltrain up`"
        )


class Bucket:
    """An amount that fills evenly to a minute's limit; 0 means no limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left = float(limit)
        self._filled = time.monotonic()

    def wait(self, amount: int) -> float:
        """Return the seconds after which `amount` is available; 0 if it is now."""
        if not self.limit:
            return 0.0
        now = time.monotonic()
        self._left += (now - self._filled) * self.limit / MINUTE
        self._left, self._filled = min(self._left, float(self.limit)), now
        return max(0.0, amount - self._left) * MINUTE / self.limit

    def take(self, amount: int) -> None:
        self._left -= amount


class Budget:
    """The budget of one key; usable from any thread."""

    def __init__(self, limits: IngestLimits) -> None:
        """Start with a full minute."""
        self.limits = limits
        self._lock = threading.Lock()
        self._bytes = Bucket(limits.minute << 20)
        self._records = Bucket(limits.records)
        self._total = limits.total << 20
        self._stored = 0

    def max_bytes(self, limit: int) -> int:
        """Return the size limit of a request, if that of the server is `limit`."""
        return min(limit, self.limits.request << 20 or limit)

    def require(self, size: int, records: int = 0) -> None:
        """Check whether a request fits into the budget.

        Args:
            size: its bytes, as far as they are known.

        Raises:
            OverBudget: it will never fit.
            OverMinute: it fits later.
            TooLarge: it is larger than a request may be.
        """
        with self._lock:
            self._require(size, records)

    def charge(self, size: int, records: int) -> None:
        """Count a request, or raise as `require` does."""
        with self._lock:
            self._require(size, records)
            self._bytes.take(size)
            self._records.take(records)
            self._stored += size

    def _require(self, size: int, records: int) -> None:
        limits = self.limits
        if limits.request and size > limits.request << 20:
            raise too_large(limits.request << 20)
        if self._total and self._stored + size > self._total:
            raise OverBudget(
                f"This key has stored {self._stored >> 20} of {self._total >> 20} MiB, which are "
                f"all that it may; {limits.how_to_raise('total')}."
            )
        self._require_minute(self._bytes, size, f"{limits.minute} MiB", "minute")
        self._require_minute(self._records, records, f"{limits.records} records", "records")

    def _require_minute(self, bucket: Bucket, amount: int, may: str, limit: str) -> None:
        how = self.limits.how_to_raise(limit)
        if bucket.limit and amount > bucket.limit:
            raise OverBudget(
                f"One request has more than the {may} that its key may send in a minute. Send "
                f"less at a time, or {how}."
            )
        if wait := bucket.wait(amount or 1):
            raise OverMinute(
                f"This key has sent the {may} that it may send in a minute. Send again in "
                f"{ceil(wait)} s, send less, or {how}.",
                ceil(wait),
            )


class Budgets:
    """The budgets of all keys, and the reserve of the store's disk; used from one event loop."""

    def __init__(self, folder: Path, bound: IngestLimits, others: IngestLimits) -> None:
        self._folder = folder
        self._bound, self._others = bound, others
        self._used = OrderedDict[str, Budget]()

    @classmethod
    def from_environment(cls, folder: Path) -> "Budgets":
        """Return the budgets of the environment, for the store in `folder`.

        Raises:
            BadSetting: a variable is invalid.
        """
        limits = map(IngestLimits.from_environment, (BOUND_LIMITS, INGEST_LIMITS))
        return cls(folder, *limits)

    def of(self, grant: Grant | None) -> Budget | None:
        """Return the budget of a request's key; None if it has none.

        Raises:
            ReservedDisk: only ltrain's own processes may store more.
        """
        if grant is not None and grant.sender in TRUSTED_SENDERS:
            return None
        disk = read_disk(self._folder)
        if disk.free < disk.reserve:
            raise ReservedDisk(
                f"The store's disk is almost full: {disk.free >> 20} MiB are free, and the last "
                f"{disk.reserve >> 20} MiB are reserved for ltrain's own processes. Free some "
                "space, e.g. with `ltrain store prune`, then send again."
            )
        name = f"{grant.sender}:{grant.name}" if grant is not None else ""
        budget = self._used.pop(name, None) or self._new_budget(grant)
        self._used[name] = budget
        if len(self._used) > MAX_KEYS:
            self._used.popitem(last=False)
        return budget

    def _new_budget(self, grant: Grant | None) -> Budget:
        if grant is None or not grant.bound:
            return Budget(self._others)
        if grant.rollout:
            return Budget(self._bound)
        # the key of a run serves all attempts of the run, however many there are at the same time
        return Budget(replace(self._bound, minute=0, records=0, total=0))


EVENT = "ltrain.refused"
"""The event name of the records."""

LOGGED = (OverBudget, OverMinute, ReservedDisk, TooLarge)
"""Errors that concern the sender alone."""

LOG_INTERVAL = 60.0
"""Seconds between two records about one key."""


class RefusalLog:
    """Counts the refused requests of bound keys; used from one event loop."""

    def __init__(self) -> None:
        self._keys = OrderedDict[str, tuple[float, int]]()
        """The time of the last record about a key, and its refused requests until now."""

    def add(self, error: OtlpError, grant: Grant | None) -> ExportLogsServiceRequest | None:
        """Count a refused request; return the record to store, at most one a minute for a key."""
        if grant is None or not grant.bound or not isinstance(error, LOGGED):
            return None
        now = time.monotonic()
        last, count = self._keys.pop(grant.name, (-inf, 0))
        is_due = now - last >= LOG_INTERVAL
        self._keys[grant.name] = (now if is_due else last, count + 1)
        if len(self._keys) > MAX_KEYS:
            self._keys.popitem(last=False)
        return _record(grant, error, count + 1) if is_due else None


def _record(grant: Grant, error: OtlpError, count: int) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    service = resource.resource.attributes.add(key="service.name")
    service.value.string_value = COLLECTOR_SERVICE
    record = resource.scope_logs.add().log_records.add(
        time_unix_nano=time.time_ns(), event_name=EVENT, severity_text="WARN", severity_number=13
    )
    were = "was" if count == 1 else "were"
    record.body.string_value = f"{quantity(count, 'request')} {were} refused: {error}"
    for name, value in grant.identity.items():
        record.attributes.add(key=name).value.string_value = value
    return request
