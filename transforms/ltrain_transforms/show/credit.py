"""What an attempt and its calls are worth, in sentences that a terminal and a page share."""

from ltrain_transforms.show.tree import Attempt, Given, Row, Step
from ltrain_transforms.show.words import signed

ADVANTAGES = ("outcome_advantage", "process_advantage", "step_advantage")


def place(execution: Row) -> str:
    """Say which rollout of which task it is."""
    columns = ("run_id", "mode", "wave", "task_id", "sample_index", "domain")
    words = ("run", "mode", "wave", "task", "sample", "domain")
    known = zip(words, map(execution.get, columns), strict=True)
    return ", ".join(f"{word} {value}" for word, value in known if value is not None)


def ending(attempt: Attempt) -> str:
    """Say how an attempt ended, how long it took and what it did."""
    it = attempt.execution
    return (
        f"attempt {it['attempt']}: {it['outcome'] or 'no outcome'} after {it['wall'] or 0:.2f} s "
        f"(critical path {it['critical_path'] or 0:.2f} s); {it['llm_calls'] or 0} LLM and "
        f"{it['tool_calls'] or 0} tool calls in {it['traces'] or 0} trace(s)"
    )


def fault(attempt: Attempt) -> str:
    """Say why it does not count or is not whole, or nothing."""
    it = attempt.execution
    said = ["superseded by a later attempt"] if it["superseded"] else []
    if not it["complete"]:
        seen = f"{it['spans_seen']} of {it['spans_expected']} reported spans are there"
        said.append(f"incomplete: {'not closed' if it['outcome'] is None else seen}")
    return "; ".join(said)


def standing(attempt: Attempt) -> str:
    """Say what it is worth beside its group."""
    if attempt.outcome is None:
        return "no outcome reward"
    mean = sum(attempt.group) / len(attempt.group)
    return f"outcome reward {attempt.outcome:g}; its group of {len(attempt.group)}: mean {mean:.3f}"


def given(reward: Given) -> str:
    """Say who gave a reward, and for what."""
    return f"{reward.rule} {signed(reward.value)} ({reward.source}; evidence {reward.evidence})"


def advantage(step: Step) -> str:
    """Give a trained call's return and advantage, with the parts that are not 0."""
    row = step.credit
    if row is None:
        return ""
    parts = [
        f"{name.removesuffix('_advantage')} {signed(row[name])}"
        for name in ADVANTAGES
        if row.get(name)
    ]
    whole = f"return {signed(row['returns'])}, advantage {signed(row['advantage'])}"
    return f"{whole} = {', '.join(parts)}" if parts else whole


def training(step: Step) -> str:
    """Say which of its tokens are trained in which row, and why a row begins with it."""
    return ", ".join(
        f"{one.tokens:,} tokens in row {one.row} ({one.sample_id[:8]})"
        + (f"; {one.begins}" if one.begins else "")
        for one in step.trained
    )


def doubt(step: Step) -> str:
    """Say on what the captures of a call disagree."""
    found = step.call["capture_mismatch"]
    return f"its captures disagree on {found}; the gateway's counts" if found else ""


def drop(row: Row) -> str:
    """Say what was left out at which stage and why."""
    detail = f": {row['detail']}" if row["detail"] else ""
    return f"{row['stage']}/{row['reason']}{detail}"
