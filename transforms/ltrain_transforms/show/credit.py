"""Sentences about an attempt, its rewards and its credit, for both a terminal and a page."""

from dataclasses import dataclass

from ltrain_instrument.quantity import quantity
from ltrain_transforms.show.display_text import format_signed
from ltrain_transforms.show.tree import Attempt, RewardEntry, Row, TreeCall
from ltrain_transforms.traces import parse_json, to_text

ADVANTAGES = ("outcome_advantage", "process_advantage", "step_advantage")


def describe_rollout(execution: Row) -> str:
    """Return run, mode, wave, task, sample and domain of an execution, as far as known."""
    columns = ("run_id", "mode", "wave", "task_id", "sample_index", "domain")
    labels = ("run", "mode", "wave", "task", "sample", "domain")
    values = zip(labels, map(execution.get, columns), strict=True)
    return ", ".join(f"{label} {value}" for label, value in values if value is not None)


def describe_ending(attempt: Attempt) -> str:
    """Return how an attempt ended, how long it took and how many calls it made."""
    row = attempt.execution
    outcome = row["outcome"] or "no outcome"
    return (
        f"attempt {row['attempt']}: {outcome} after {row['wall'] or 0:.2f} s (critical path "
        f"{row['critical_path'] or 0:.2f} s); {quantity(row['llm_calls'] or 0, 'LLM call')} "
        f"and {quantity(row['tool_calls'] or 0, 'tool call')} in "
        f"{quantity(row['traces'] or 0, 'trace')}"
    )


def describe_faults(attempt: Attempt) -> str:
    """Return why an attempt does not count or is not complete; empty if it is fine."""
    row = attempt.execution
    faults = ["superseded by a later attempt"] if row["superseded"] else []
    if not row["complete"]:
        count = f"{row['spans_seen']} of {row['spans_expected']} reported spans are there"
        faults.append(f"incomplete: {'not closed' if row['outcome'] is None else count}")
    return "; ".join(faults)


def describe_outcome(attempt: Attempt) -> str:
    """Return the outcome reward of an attempt and the mean of its group."""
    if attempt.outcome is None:
        return "no outcome reward"
    mean = sum(attempt.group) / len(attempt.group)
    return f"outcome reward {attempt.outcome:g}; its group of {len(attempt.group)}: mean {mean:.3f}"


def describe_contents(execution: Row) -> list[tuple[str, str]]:
    """Return name and text of what was recorded of an attempt's task and result."""
    fields = parse_json(execution["task_fields"])
    if not isinstance(fields, dict):
        fields = {"fields": fields} if fields else {}  # a text: the JSON was shortened
    values = [(f"task {name}", value) for name, value in fields.items()]
    for name, text in (("task input", execution["task_input"]), ("result", execution["result"])):
        if text is not None:
            values.append((name, parse_json(text)))
    if execution["altered"]:
        values.append(("note", "task or result were shortened or redacted before recording"))
    return [(name, to_text(value)) for name, value in values]


def describe_reward(reward: RewardEntry) -> str:
    """Return the rule, value, source and evidence of a reward."""
    return (
        f"{reward.rule} {format_signed(reward.value)} ({reward.source}; evidence {reward.evidence})"
    )


@dataclass(frozen=True, slots=True)
class AdvantagePart:
    """A part of the advantage of a call, or the whole, as a bar from -100 to 100."""

    name: str
    value: float
    scale: float
    """The value of a bar of length 100."""

    @property
    def begin(self) -> float:
        """The left end of the bar."""
        return min(self.value / self.scale * 100, 0.0)

    @property
    def length(self) -> float:
        """The length of the bar."""
        return abs(self.value / self.scale * 100)


def advantage_parts(step: TreeCall) -> list[AdvantagePart]:
    """Return the parts of a call's advantage that are not 0, and last the advantage itself."""
    row = step.credit
    if row is None:
        return []
    values = {name.removesuffix("_advantage"): row.get(name) or 0.0 for name in ADVANTAGES}
    shown = {name: value for name, value in values.items() if value}
    shown["advantage"] = row["advantage"] or 0.0
    scale = max(map(abs, shown.values())) or 1.0
    return [AdvantagePart(name, value, scale) for name, value in shown.items()]


def describe_advantage(step: TreeCall) -> str:
    """Return the return and advantage of a trained call, with the parts that are not 0."""
    row = step.credit
    if row is None:
        return ""
    parts = [
        f"{name.removesuffix('_advantage')} {format_signed(row[name])}"
        for name in ADVANTAGES
        if row.get(name)
    ]
    total = f"return {format_signed(row['returns'])}, advantage {format_signed(row['advantage'])}"
    return f"{total} = {', '.join(parts)}" if parts else total


def describe_training(step: TreeCall) -> str:
    """Return how many tokens of a call are trained in which row, and why a row begins with it."""
    return ", ".join(
        f"{quantity(part.tokens, 'token')} in row {part.row} ({part.sample_id[:8]})"
        + (f"; {part.begins}" if part.begins else "")
        for part in step.trained
    )


def describe_mismatch(step: TreeCall) -> str:
    """Return the field in which the captures of a call differ; empty if they agree."""
    mismatch = step.call["capture_mismatch"]
    return f"its captures disagree on {mismatch}; the gateway's counts" if mismatch else ""


def describe_drop(row: Row) -> str:
    """Return the stage, reason and detail of a drop."""
    detail = f": {row['detail']}" if row["detail"] else ""
    return f"{row['stage']}/{row['reason']}{detail}"
