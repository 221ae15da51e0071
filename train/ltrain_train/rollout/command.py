"""An agent that is a shell command: one process tree an attempt, under OpenTelemetry's launcher.

It finds its task and its endpoint in the environment (`LTRAIN_TASK`, `OPENAI_BASE_URL`,
`OPENAI_API_KEY`, `OPENAI_MODEL`); the last line it prints is its result, as JSON where it is JSON.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGKILL
from typing import Any

from ltrain_instrument.private import make_private
from ltrain_train.process import Child, ChildDied, Children
from ltrain_train.rollout import strict_json
from ltrain_train.rollout.attempt import Attempt, Ending, Outcome
from ltrain_train.rollout.death import of_death
from ltrain_train.rollout.lane import KILL_GRACE, Ended, instrumented

LONGEST_RESULT = 16 << 20
"""Bytes at the end of a command's output in which its result is looked for."""

_SHELL = 'exec >"$1"; eval "$2"'
"""The command's output goes to a file of its own, what it says on stderr to the log."""


class Commands:
    """A lane of `workers` commands at a time; their guards keep the descriptors `held` open."""

    def __init__(
        self,
        command: str,
        *,
        folder: Path,
        environ: dict[str, str | None],
        logs: Path,
        workers: int,
        ended: Ended,
        held: Sequence[int] = (),
    ) -> None:
        self._command, self._folder, self._environ, self._logs = command, folder, environ, logs
        self._slots = workers
        self._ended = ended
        self._children = Children(held)
        self._lock = threading.Lock()
        self._flying: set[str] = set()
        self._closed = False

    def wait_ready(self, timeout: float) -> None:
        """Return at once: every attempt starts its own process."""

    def room(self, *, alone: bool = False) -> int:
        """Count the attempts that can start now; each is alone in its process."""
        with self._lock:
            return self._slots - len(self._flying)

    def submit(self, attempt: Attempt) -> None:
        """Start an attempt in a thread of its own."""
        with self._lock:
            self._flying.add(attempt.id)
        threading.Thread(target=self._run, args=(attempt,), daemon=True).start()

    def expire(self) -> None:
        """Do nothing: each thread minds its deadline."""

    def close(self) -> None:
        """End every command."""
        with self._lock:
            self._closed = True
        self._children.stop()

    def _run(self, attempt: Attempt) -> None:
        ending = self._ending(attempt)
        with self._lock:
            self._flying.discard(attempt.id)
            if self._closed:
                return
        self._ended(attempt, ending)

    def _ending(self, attempt: Attempt) -> Ending:
        output = self._logs / f"{attempt.id}.out"
        try:
            child = self._start(attempt, output)
        except (OSError, ChildDied) as error:  # no process, no disk, no launcher
            return Ending(Outcome.INFRA, f"the command cannot be started: {error}")
        try:
            status = child.wait(attempt.deadline)
        except TimeoutError:
            child.stop()
            return Ending(Outcome.TIMEOUT, f"still running after {attempt.deadline:g} s")
        child.stop()
        ending = _judge(attempt, status, child, output)
        if ending.outcome is Outcome.OK:
            output.unlink(missing_ok=True)
            if not child.log.stat().st_size:
                child.log.unlink()
        return ending

    def _start(self, attempt: Attempt, output: Path) -> Child:
        make_private(self._logs)
        return self._children.start(
            f"command {attempt.id}",
            instrumented(["/bin/sh", "-c", _SHELL, "sh", str(output.resolve()), self._command]),
            env={**self._environ, **_handed(attempt)},
            log=self._logs / f"{attempt.id}.log",
            cwd=self._folder,
            grace=KILL_GRACE,
        )


def _handed(attempt: Attempt) -> Mapping[str, str | None]:
    return {
        **attempt.environ,
        **attempt.identity.environ(),
        "TRACEPARENT": attempt.traceparent,
        "OPENAI_BASE_URL": attempt.endpoint.base_url,
        "OPENAI_API_KEY": attempt.endpoint.api_key,
        "OPENAI_MODEL": attempt.endpoint.model,
        "LTRAIN_TASK": json.dumps(attempt.task),
    }


def _judge(attempt: Attempt, status: int, child: Child, output: Path) -> Ending:
    if status == 0:
        return Ending(Outcome.OK, result=_result(output))
    last = (child.tail(1) or f"nothing on stderr; {output}").strip()
    if status == -SIGKILL or status == 128 + SIGKILL:  # the kernel's, when memory ends
        return of_death(attempt, f"the command was killed: {last}")
    return Ending(Outcome.ERROR, f"the command ended with status {status}: {last}")


def _result(output: Path) -> Any:
    lines = _end(output).splitlines() if output.exists() else []
    last = next((line for line in reversed(lines) if line.strip()), "")
    try:
        return strict_json.parse(last)
    except ValueError:
        return last


def _end(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - LONGEST_RESULT))
        return file.read().decode(errors="replace")
