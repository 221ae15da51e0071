"""One worker process and the two pipes to it.

The agent's code holds both pipes too: what comes over them is untrusted, and what is written to
them may never be read, so that a thread of its own writes.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ltrain_train.process import Child, Children
from ltrain_train.rollout import strict_json
from ltrain_train.rollout.attempt import Attempt
from ltrain_train.rollout.lane import KILL_GRACE, instrumented


class WorkerProcess:
    """Runs the agent; what it sends goes to the callables given to `listen`."""

    def __init__(
        self,
        *,
        name: str,
        agent: str,
        folder: Path,
        environ: dict[str, str | None],
        log: Path,
        concurrency: int,
        children: Children,
    ) -> None:
        self.name, self.log = name, log
        self.ready = False
        """Whether it takes attempts."""
        self.patience = 0.0
        """Seconds beyond a deadline that it has to cancel the attempt by itself."""
        self.flying: dict[str, Attempt] = {}
        """What runs in it, by execution id."""
        self.shared: set[str] = set()
        """Execution ids of attempts beside which others ran in it."""
        self.late_attempts: list[Attempt] = []
        """What ran past its deadline in it, for which it was stopped."""
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """Requests that are not written yet; None ends them."""
        requests, self._requests = os.pipe()
        self._results, results = os.pipe()
        argv = [sys.executable, "-m", "ltrain_train.rollout.worker", agent]
        argv += ["--requests", str(requests), "--results", str(results)]
        argv += ["--concurrency", str(concurrency)]
        try:
            self._child: Child = children.start(
                name,
                instrumented(argv),
                env=environ,
                log=log,
                cwd=folder,
                pass_fds=(requests, results),
                grace=KILL_GRACE,
            )
        finally:
            os.close(requests)
            os.close(results)

    def listen(
        self,
        *,
        said: Callable[["WorkerProcess", dict[str, Any]], None],
        gone: Callable[["WorkerProcess"], None],
    ) -> None:
        """Write the requests and pass on each message, and the end, from two threads."""

        def write() -> None:
            with suppress(BrokenPipeError), os.fdopen(self._requests, "w") as requests:
                while (line := self._lines.get()) is not None:
                    requests.write(line)
                    requests.flush()

        def read() -> None:
            with os.fdopen(self._results, errors="replace") as results:
                for line in results:
                    if (message := _message(line)) is not None:
                        said(self, message)
            gone(self)

        threading.Thread(target=write, name=f"{self.name}-requests", daemon=True).start()
        threading.Thread(target=read, name=f"{self.name}-results", daemon=True).start()

    @property
    def taken(self) -> bool:
        """Whether an attempt has it to itself."""
        return any(attempt.alone for attempt in self.flying.values())

    def send(self, attempt: Attempt) -> None:
        """Ask for an attempt and return at once; the end of a worker is `gone`'s to tell."""
        if self.flying:
            self.shared |= {attempt.id, *self.flying}
        self.flying[attempt.id] = attempt
        self._lines.put(json.dumps(_request(attempt)) + "\n")

    def late(self, now: int) -> set[str]:
        """Return the execution ids past their deadline at `now`, in Unix nanoseconds."""
        return {
            name
            for name, attempt in self.flying.items()
            if now > attempt.started + (attempt.deadline + self.patience) * 1e9
        }

    def stop(self) -> None:
        """Ask for its end and that of all it started, and return at once."""
        self._lines.put(None)
        self._child.ask()

    def tail(self) -> str:
        """Return the last lines of its log."""
        return self._child.tail()


def _message(line: str) -> dict[str, Any] | None:
    """Return what a worker sends; None for a line that is no message."""
    try:
        message = strict_json.parse(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _request(attempt: Attempt) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "identity": asdict(attempt.identity),
        "task": dict(attempt.task),
        "endpoint": asdict(attempt.endpoint),
        "traceparent": attempt.traceparent,
        "deadline": attempt.deadline,
    }
