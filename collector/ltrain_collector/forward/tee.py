"""The tee: a queue on disk for each target and signal, and a thread that empties it.

* A request is in the queues before it is acknowledged, so `kill -9` loses none: the next collector
  of the store sends what is left. A target can get a request twice, never less than once.
* A target that is away, busy or refuses the key delays only its own queue.
* A full queue takes no more: the store goes on, and the requests that the target misses are
  counted by reason, logged, and shown in `/health`.
* A request that the target refuses for good is moved to `refused/`, and counted.
* Each request names the collectors that forwarded it. One that comes back is stored and sent no
  further, logged once, and counted in `/health`.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from ltrain_collector.forward.grpc_client import GrpcClient
from ltrain_collector.forward.target import Target
from ltrain_collector.signals import SIGNALS, Signal
from ltrain_instrument.delivery import (
    SUFFIX,
    Destination,
    SendResult,
    SendStatus,
    Spool,
    folder_size,
)
from ltrain_instrument.errors import SpoolFull
from ltrain_instrument.quantity import quantity
from ltrain_instrument.settings import FORWARD_LIMIT

MAX_PAUSE = 30.0
"""Maximum seconds between two attempts while a target is away."""

SEARCH_INTERVAL = 60.0
"""Seconds between two searches for queues of dead processes; the first is at the start."""

LOG_INTERVAL = 60.0
"""Seconds between two warnings of one queue about lost requests."""

CLOSE_SECONDS = 1.0
"""Seconds in which a stopping collector sends what waits; the rest stays on disk."""

FULL, DISK, REFUSED = "full", "disk", "refused"
REASONS = (FULL, DISK, REFUSED)
"""Why a target misses a request."""

Callbacks = list[Callable[[CallbackOptions], Iterable[Observation]]]

logger = logging.getLogger(__name__)


def forward_folder(store: Path) -> Path:
    """Return the folder with the queues of the store in a folder."""
    return store.with_name(f"{store.name}.forward")


class _Queue:
    """Requests of one signal that wait for one target."""

    def __init__(self, folder: Path, target: Target, signal: Signal) -> None:
        self.target, self.signal = target, signal
        self._folder = folder / target.name / signal.name
        self.posts = Counter[str]()
        """HTTP requests by result."""
        self._lost = Counter[str]()
        self.rejected = 0
        """Records of accepted requests that the target did not store."""
        self.is_away = False
        """Whether the target did not accept the last request."""
        self._warned_at = -LOG_INTERVAL
        headers, url = target.headers(), target.signal_url(signal)
        self._spool = Spool(
            self._folder,
            limit=FORWARD_LIMIT.read(),
            rescan_interval=SEARCH_INTERVAL,
            destination=Destination(
                locate=lambda _: url,
                headers=lambda: headers,
                certificate=lambda: None,
                response=signal.response,
                records=signal.noun,
                rejected_field=f"rejected_{signal.records}",
                key_remedy=f"Set {target.variable} to the headers that the target wants.",
                certificate_remedy="Set SSL_CERT_FILE to the certificate file of its authority.",
                endpoint_remedy="Restart `ltrain up` with the target's URL in --forward.",
                max_pause=MAX_PAUSE,
                observe=self._observe,
                client=partial(GrpcClient, target, signal) if target.is_grpc else None,
            ),
        )

    @property
    def missing(self) -> Counter[str]:
        """Requests that the target misses, by reason."""
        return self._lost + Counter({REFUSED: self._spool.refused})

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the files that are not sent completely."""
        return folder_size(self._folder)

    def append(self, request: bytes) -> None:
        """Write a request to disk, or count it as lost for the target."""
        try:
            self._spool.append(request)
        except OSError as error:
            reason = FULL if isinstance(error, SpoolFull) else DISK
            self._lost[reason] += 1
            self._warn_of_loss(reason, error)

    def _warn_of_loss(self, reason: str, error: OSError) -> None:
        if time.monotonic() - self._warned_at < LOG_INTERVAL:
            return
        self._warned_at = time.monotonic()
        why = str(error.strerror or error)
        if reason == FULL:
            why = f"the queue holds the MiB that {FORWARD_LIMIT.name} allows"
        requests = quantity(self._lost.total(), "request")
        logger.warning(
            "ltrain: the target '%s' of --forward misses %s of %s so far, which are stored here: "
            "%s.",
            *(self.target.name, requests, self.signal.name, why),
        )

    def _observe(self, result: SendResult) -> None:
        """Count a result, and log that the target is away or back."""
        was_away, self.is_away = self.is_away, result.status is SendStatus.RETRY
        self.posts[result.status] += 1
        self.rejected += result.rejected
        if self.is_away and not was_away:
            reason = f"{result.reason}. {result.remedy}".strip()
            logger.warning(
                "ltrain: %s wait for the target '%s' of --forward in %s: %s",
                *(self.signal.noun, self.target.name, self._folder, reason),
            )
        elif was_away and not self.is_away:
            logger.warning("ltrain: the target '%s' of --forward answers again.", self.target.name)

    def close(self, timeout: float) -> None:
        self._spool.close(timeout)


def _report(queues: list[_Queue]) -> dict[str, Any]:
    return {
        "away": any(queue.is_away for queue in queues),
        "waiting_bytes": sum(queue.waiting_bytes for queue in queues),
        "rejected": sum(queue.rejected for queue in queues),
        "missing": dict(sum((queue.missing for queue in queues), Counter[str]())),
    }


def _warn_of_leftovers(folder: Path, targets: Sequence[Target]) -> None:
    """Warn of requests that wait for a target of an earlier start."""
    names = {target.name for target in targets}
    for path in folder.glob(f"*/*/*{SUFFIX}"):
        name = path.relative_to(folder).parts[0]
        if name not in names:
            names.add(name)
            logger.warning(
                "ltrain: requests wait in %s for the target '%s', which no --forward names.",
                *(folder / name, name),
            )


def _observe_queues(meter: Meter, queues: Sequence[_Queue]) -> None:
    """Create the metrics of the queues, by target and signal."""

    def labels(queue: _Queue) -> dict[str, str]:
        return {"target": queue.target.name, "signal": queue.signal.name}

    def counted(
        label: str, values: Iterable[str], counts: Callable[[_Queue], Counter[str]]
    ) -> Callbacks:
        return [
            lambda _: [
                Observation(counts(queue)[value], {**labels(queue), label: value})
                for queue in queues
                for value in values
            ]
        ]

    def measured(value: Callable[[_Queue], int]) -> Callbacks:
        return [lambda _: [Observation(value(queue), labels(queue)) for queue in queues]]

    meter.create_observable_counter(
        "ltrain_collector_forward_posts_total",
        counted("result", SendStatus, lambda queue: queue.posts),
        description="HTTP requests to targets of --forward, by result: accepted, retry, refused.",
    )
    meter.create_observable_counter(
        "ltrain_collector_forward_missing_total",
        counted("reason", REASONS, lambda queue: queue.missing),
        description="Stored requests that a target misses: full, disk, refused.",
    )
    meter.create_observable_counter(
        "ltrain_collector_forward_rejected_total",
        measured(lambda queue: queue.rejected),
        description="Records of accepted requests that a target rejected: partial_success.",
    )
    meter.create_observable_gauge(
        "ltrain_collector_forward_waiting_bytes",
        measured(lambda queue: queue.waiting_bytes),
        "By",
        "Bytes on disk that wait for a target.",
    )


class Tee:
    """The queues of all targets; `append` is used from one event loop."""

    def __init__(self, folder: Path, targets: Sequence[Target], meter: Meter) -> None:
        """Open the queues and begin to send what an earlier process left.

        Raises:
            BadTarget: the headers of a target are not in OpenTelemetry's form.
            BadSetting: the limit of the queues is invalid.
        """
        self.id = uuid4().hex[:16]
        """The id of this process: a copied folder never makes two collectors the same one."""
        self.returned = 0
        """Requests with records that this process had forwarded."""
        self._queues = [_Queue(folder, target, signal) for target in targets for signal in SIGNALS]
        self._thread = ThreadPoolExecutor(1, "ltrain-forward")
        _warn_of_leftovers(folder, targets)
        if targets:
            _observe_queues(meter, self._queues)

    @property
    def is_open(self) -> bool:
        """Whether there is a target."""
        return bool(self._queues)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def append(self, signal: Signal, request: bytes) -> None:
        """Return once the request is on disk for each target, or counted as lost."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._append, signal, request)

    def count_returned(self, signal: Signal) -> None:
        """Count a request with records that this process had forwarded, and log the first one."""
        self.returned += 1
        if self.returned == 1:
            logger.warning(
                "ltrain: %s that this collector had forwarded came back: its targets forward to "
                "it. They are stored once and sent no further. Remove one --forward of the ring.",
                signal.noun,
            )

    def _append(self, signal: Signal, request: bytes) -> None:
        for queue in self._queues:
            if queue.signal is signal:
                queue.append(request)

    def report(self) -> dict[str, dict[str, Any]]:
        """Return the state of each target, for `/health`."""
        by_target = defaultdict[str, list[_Queue]](list)
        for queue in self._queues:
            by_target[queue.target.name].append(queue)
        return {name: _report(queues) for name, queues in by_target.items()}

    def close(self) -> None:
        """Stop; what is not sent within a second stays on disk."""
        end = time.monotonic() + CLOSE_SECONDS
        self._thread.shutdown()
        for queue in self._queues:
            queue.close(max(0.0, end - time.monotonic()))
