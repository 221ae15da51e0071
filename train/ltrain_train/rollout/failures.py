"""Why rollouts failed: the commonest reason, one example of it, and its log."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ltrain_transforms.ended_rollout import EndedRollout

MAX_REASON_CHARACTERS = 300
_VARIABLE_PART = re.compile(r"0x[0-9a-f]+|[0-9a-f]{16,}|\d+(?:\.\d+)?")
"""Ids and numbers, which differ between failures of the same cause."""
_LOG_TAIL = 1 << 20
"""Bytes at the end of a worker's log that are searched for a reason."""


def describe_failures(failures: Sequence[EndedRollout], rollouts: int, logs: Path) -> str:
    """Return the commonest reason of `failures`, one or more, with an example and its log.

    Args:
        logs: folder of the logs of workers and commands.
    """
    (kind, count), *others = Counter(map(_kind, failures)).most_common()
    example = next(each for each in failures if _kind(each) == kind)
    reason = example.reason.strip()[-MAX_REASON_CHARACTERS:].rstrip(".") or "no reason is known"
    mostly = f"{count} of them as" if others else "all as" if count > 1 else "as"
    log = _find_log(logs, example)
    where = f" Log: {log}" if log else ""
    return (
        f"{len(failures)} of {rollouts} rollouts failed, {mostly} {example.outcome}: {reason}. "
        f"Example: rollout {example.rollout}, task '{example.task}'.{where}"
    )


def _kind(failure: EndedRollout) -> tuple[str, str]:
    return failure.outcome, _VARIABLE_PART.sub("#", failure.reason)


def _find_log(logs: Path, failure: EndedRollout) -> Path | None:
    """Return the log of the command, or the worker's log with the reason, or the newest one."""
    command = logs / f"{failure.rollout}.{failure.attempt}.log"
    if command.exists():
        return command
    newest_first = sorted(logs.glob("worker-*.log"), key=lambda log: -log.stat().st_mtime)
    last_line = failure.reason.strip().rpartition("\n")[2]
    matches = (log for log in newest_first if last_line and last_line in _read_tail(log))
    return next(matches, newest_first[0] if newest_first else None)


def _read_tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL))
        return file.read().decode(errors="replace")
