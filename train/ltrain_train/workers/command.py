"""Runs an agent that is a shell command: one process tree for each attempt, instrumented.

The command reads its task, its endpoint and the addresses of its services from the environment
(`LTRAIN_TASK`, `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `OPENAI_MODEL`, `LTRAIN_SERVICE_*`,
`LTRAIN_PROMPTS`). The last line that it prints is its result, parsed as JSON if it is JSON.
"""

import json
import os
import threading
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Any

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.files import make_private
from ltrain_instrument.prompts import prompt_environment
from ltrain_instrument.settings import HOME
from ltrain_train.processes import Child, Children, Command
from ltrain_train.sandboxes import BadWorkspace, Room, Sandboxes
from ltrain_train.workers.attempt import Attempt, AttemptResult, Outcome, result_of_death
from ltrain_train.workers.executor import KILL_GRACE, AgentProcesses, OnEnd, instrumented_command
from ltrain_train.workers.output import describe_excess, is_excess, watch_output
from ltrain_train.workers.results import parse_json

MAX_RESULT_BYTES = 16 << 20
"""Bytes at the end of a command's output that may contain its result."""
CLOSE_TIMEOUT = 20.0
"""Seconds for an attempt whose command has ended to read its outbox."""

_SHELL_SCRIPT = 'exec >"$1"; eval "$2"'
"""Redirects the command's stdout to a file of its own; its stderr goes to the log."""
_SANDBOX_SCRIPT = 'exec >"$1"; shift; trap "" TERM; exec "$@"'
"""The same for the command line of a sandbox, whose first process alone ends on SIGTERM."""


class CommandExecutor:
    """Runs one command for each attempt."""

    def __init__(self, processes: AgentProcesses, on_end: OnEnd) -> None:
        self._processes, self._on_end = processes, on_end
        self._children = Children(processes.keep_open)
        self._lock = threading.Lock()
        self._in_flight: set[str] = set()
        self._running: dict[str, Child] = {}
        """The commands that have been started and not timed out, by execution id."""
        self._timed_out: set[str] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._sandboxes = None
        if processes.sandbox is not None:
            home = Path(processes.environ[HOME.name] or "")
            self._sandboxes = Sandboxes(processes.sandbox, processes.python, home)

    def wait_ready(self, timeout: float) -> None:
        """Return at once: every attempt starts its own process."""

    def free_slots(self, *, isolated: bool = False) -> int:
        """Return how many attempts can start now; each always has a process to itself."""
        with self._lock:
            return self._processes.workers - len(self._in_flight)

    def submit(self, attempt: Attempt) -> None:
        """Start an attempt in a thread of its own."""
        with self._lock:
            self._in_flight.add(attempt.id)
        thread = threading.Thread(target=self._run_attempt, args=(attempt,), daemon=True)
        self._threads.add(thread)
        thread.start()

    def time_out(self, attempts: Collection[str]) -> None:
        """End the commands of these attempts; the thread of each waits for its end."""
        with self._lock:
            overdue = [name for name in attempts if name in self._running]
            self._timed_out.update(overdue)
            children = [self._running.pop(name) for name in overdue]
        for child in children:
            threading.Thread(target=child.stop, daemon=True).start()

    def close(self) -> None:
        """End every command."""
        with self._lock:
            self._closed = True
        self._children.stop()
        if self._sandboxes is not None:
            for thread in list(self._threads):  # they read what their attempts left
                thread.join(CLOSE_TIMEOUT)
            self._sandboxes.close()

    def _run_attempt(self, attempt: Attempt) -> None:
        result = self._run_to_end(attempt)
        self._threads.discard(threading.current_thread())
        with self._lock:
            self._in_flight.discard(attempt.id)
            if self._closed:
                return
        self._on_end(attempt, result)

    def _run_to_end(self, attempt: Attempt) -> AttemptResult:
        output = self._processes.logs / f"{attempt.id}.out"
        environ = {**self._processes.environ, **_attempt_environment(attempt)}
        with ExitStack() as stack:
            room = None
            try:
                make_private(self._processes.logs)
                if self._sandboxes is not None:
                    workspace = stack.enter_context(self._sandboxes.workspace_of(attempt.task))
                    command = self._shell_command
                    room = self._sandboxes.open(attempt.id, command, environ, workspace)
                child = self._start(attempt, output, environ, room)
            except (OSError, LtrainError) as error:  # no process, no disk, no launcher, no sandbox
                return AttemptResult(Outcome.INFRA, f"the command cannot be started: {error}")
            result = self._watch(attempt, child, output)
            if self._sandboxes is None or room is None:
                return result
            return _take_changes(result, self._sandboxes, room)

    def _watch(self, attempt: Attempt, child: Child, output: Path) -> AttemptResult:
        with self._lock:
            self._running[attempt.id] = child
        too_long = _wait_for_end(child, output)
        child.stop()
        with self._lock:
            self._running.pop(attempt.id, None)
            timed_out = attempt.id in self._timed_out
            self._timed_out.discard(attempt.id)
        if timed_out:
            return AttemptResult(
                Outcome.TIMEOUT, f"still running after {attempt.timeout:g} s of its own time"
            )
        if too_long:
            return AttemptResult(Outcome.ERROR, describe_excess("the command"))
        result = _classify_exit(attempt, child.wait(), child, output)
        if result.outcome is Outcome.OK:
            output.unlink(missing_ok=True)
            if not child.log.stat().st_size:
                child.log.unlink()
        return result

    @property
    def _shell_command(self) -> list[str]:
        shell = ["/bin/sh", "-c", self._processes.agent]
        return instrumented_command(shell, self._processes.python)

    def _start(
        self,
        attempt: Attempt,
        output: Path,
        environ: Mapping[str, str | None],
        room: Room | None,
    ) -> Child:
        script = ["/bin/sh", "-c", _SHELL_SCRIPT, "sh", str(output.resolve())]
        argv = instrumented_command([*script, self._processes.agent], self._processes.python)
        if room is not None:
            argv = ["/bin/sh", "-c", _SANDBOX_SCRIPT, "sh", str(output.resolve()), *room.argv]
            if self._sandboxes is not None and self._sandboxes.replaces_environment:
                environ = {**dict.fromkeys(os.environ), **room.environ}
        return self._children.start(
            f"command {attempt.id}",
            Command(
                argv=argv,
                env=environ,
                log=self._processes.logs / f"{attempt.id}.log",
                cwd=self._processes.folder,
                grace=KILL_GRACE,
            ),
        )


def _take_changes(result: AttemptResult, sandboxes: Sandboxes, room: Room) -> AttemptResult:
    """Return the result with the changes of the workspace."""
    sandboxes.end(room)
    if result.outcome is Outcome.ERROR and not room.started:
        room.remove()
        return AttemptResult(Outcome.INFRA, f"the sandbox did not start: {result.reason}")
    try:
        changes = room.finish()
    except (OSError, BadWorkspace) as error:
        room.remove()
        reason = f"what the attempt changed cannot be read: {error}"
        return result if result.outcome is not Outcome.OK else AttemptResult(Outcome.ERROR, reason)
    return replace(result, changes=changes)


def _attempt_environment(attempt: Attempt) -> Mapping[str, str | None]:
    return {
        **attempt.environ,
        **attempt.identity.environ(),
        "TRACEPARENT": attempt.traceparent,
        "OPENAI_BASE_URL": attempt.endpoint.base_url,
        "OPENAI_API_KEY": attempt.endpoint.api_key,
        "OPENAI_MODEL": attempt.endpoint.model,
        "LTRAIN_TASK": json.dumps(attempt.task),
        **prompt_environment(attempt.prompts),
        **service_environment(attempt.endpoint.services),
    }


def service_environment(services: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables by which a command finds services; they are by name."""
    return {f"LTRAIN_SERVICE_{name.upper()}": address for name, address in services.items()}


def _wait_for_end(child: Child, output: Path) -> bool:
    """Wait until a command ends, or end it if it prints too much; return whether it does."""
    too_long = False
    for printed in watch_output(child, (output, child.log)):
        if is_excess(printed):
            too_long = True
            child.stop()
    return too_long


def _classify_exit(attempt: Attempt, status: int, child: Child, output: Path) -> AttemptResult:
    if status == 0:
        return AttemptResult(Outcome.OK, output=_parse_result(output))
    last = (child.tail(1) or f"nothing on stderr; {output}").strip()
    if status == -SIGKILL or status == 128 + SIGKILL:  # the kernel sends it when memory runs out
        return result_of_death(attempt, f"the command was killed: {last}")
    return AttemptResult(Outcome.ERROR, f"the command ended with status {status}: {last}")


def last_line(output: Path) -> str:
    """Return the last line of a command's output that is not blank; '' if there is none."""
    lines = _read_end(output).splitlines() if output.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "")


def _parse_result(output: Path) -> Any:
    last = last_line(output)
    try:
        return parse_json(last)
    except ValueError:
        return last


def _read_end(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - MAX_RESULT_BYTES))
        return file.read().decode(errors="replace")
