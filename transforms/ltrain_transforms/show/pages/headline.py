"""The first look at an execution: its task in words, and what became of it."""

from collections.abc import Iterator

from ltrain_instrument.quantity import quantity
from ltrain_transforms.show.display_text import (
    call_status,
    format_signed,
    message_text,
    variable_value,
    version_label,
)
from ltrain_transforms.show.tree import Attempt, RolloutTree, Row
from ltrain_transforms.traces import parse_json, read_messages, to_text

QUESTIONS = ("input", "question", "query", "prompt", "task", "text", "message")
"""Names of the part of a task or a state that a person reads first."""
Chip = tuple[str, str]
"""A CSS class, and a text."""


def headline(shown: RolloutTree) -> str:
    """Return the task of an execution in words; its title if nothing was recorded."""
    for attempt in reversed(shown.attempts):
        for text in _tasks(attempt):
            if text.strip():
                return text
    return shown.title


def _tasks(attempt: Attempt) -> Iterator[str]:
    """Yield texts that may be the task, the best one first."""
    task = attempt.execution["task_input"]
    if task is not None:
        yield _question(parse_json(task))
    inputs = {row["variable"]: variable_value(row["value"]) for row in attempt.inputs}
    yield from (inputs[name] for name in QUESTIONS if name in inputs)
    for step in attempt.steps:
        if step.call["kind"] == "llm":
            messages = read_messages(step.call["input"])
            yield from (message_text(each) for each in reversed(messages) if each.role == "user")


def _question(task: object) -> str:
    """Return the part of a decoded task that a person reads first, else all of it as text."""
    if isinstance(task, dict):
        named = [task[name] for name in QUESTIONS if isinstance(task.get(name), str)]
        return named[0] if named else to_text(task)
    return task if isinstance(task, str) else to_text(task)


def chips(shown: RolloutTree) -> list[Chip]:
    """Return what became of the last attempt, each as a class and a text."""
    return list(_chips(shown.attempts[-1])) if shown.attempts else []


def _chips(attempt: Attempt) -> Iterator[Chip]:
    row, calls = attempt.execution, [step.call for step in attempt.steps]
    if attempt.outcome is not None:
        mean = sum(attempt.group) / len(attempt.group)
        side = "plain" if attempt.outcome == mean else "good" if attempt.outcome > mean else "bad"
        yield side, f"reward {attempt.outcome:g}"
        if len(attempt.group) > 1:
            yield "plain", f"group mean {mean:.3f}"
    advantages = [step.credit["advantage"] for step in attempt.steps if step.credit is not None]
    if advantages:
        ends = sorted({format_signed(min(advantages)), format_signed(max(advantages))})
        yield "credit", f"advantage {' to '.join(ends)}"
    outcome = row["outcome"]
    if outcome is not None:
        yield ("plain" if outcome == "ok" else "bad"), str(outcome)
    yield "plain", f"{row['wall'] or 0:.1f} s"
    kinds = (("llm_calls", "LLM call"), ("tool_calls", "tool call"))
    yield "plain", ", ".join(quantity(row[name] or 0, kind) for name, kind in kinds)
    versions = sorted({version_label(call) for call in calls} - {""})
    if versions:
        yield "plain", f"sampled by {', '.join(versions)}"
    trained = sum(part.tokens for step in attempt.steps for part in step.trained)
    if trained:
        yield "accent", quantity(trained, "trained token")
    failed = [call for call in calls if call["status"] == "error"]
    if failed:
        yield "bad", _describe_failed(failed)


def _describe_failed(failed: list[Row]) -> str:
    first = f"{failed[0]['name']}: {call_status(failed[0])}"
    return first if len(failed) == 1 else f"{quantity(len(failed), 'failed call')}, first {first}"
