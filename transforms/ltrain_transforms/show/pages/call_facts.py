"""A call in short: the badges on its row, the chips of its body, and the change of a state."""

from ltrain_transforms.show import credit, display_text
from ltrain_transforms.show.call_alignment import TextPart, compare_texts
from ltrain_transforms.show.tree import Row, TreeCall

MAX_COMPARED = 4_000
"""Characters of each of two values whose words are compared."""
Badge = tuple[str, str]
"""A CSS class, and a text."""


def call_badges(step: TreeCall) -> list[Badge]:
    """Return the badges on the row of a call; `credit` is its advantage."""
    call = step.call
    badges = [("bad", display_text.call_status(call))] if call["status"] == "error" else []
    if step.rewards:
        total = sum(reward.value for reward in step.rewards)
        badges.append(
            ("bad" if total < 0 else "good", f"reward {display_text.format_signed(total)}")
        )
    if step.credit is not None:
        badges.append(("credit", display_text.format_signed(step.credit["advantage"])))
    if step.trained:
        badges.append(("plain", f"trained {sum(part.tokens for part in step.trained):,}"))
    if step.wrote:
        badges.append(("plain", f"wrote {', '.join(row['variable'] for row in step.wrote)}"))
    if mismatch := credit.describe_mismatch(step):
        badges.append(("warn", mismatch))
    return badges + [("warn", f"dropped: {row['reason']}") for row in step.drops]


def call_facts(step: TreeCall) -> list[Badge]:
    """Return the chips of a call's body: status, version, tokens, end, temperature and seconds."""
    call = step.call
    temperature = call["temperature"]
    facts = (
        display_text.version_label(call) or call["model"],
        display_text.token_counts(call),
        call["finish_reason"] and f"finished: {call['finish_reason']}",
        None if temperature is None else f"temperature {temperature:g}",
        None if step.seconds is None else f"{step.seconds:.3f} s",
    )
    status = ("bad" if call["status"] == "error" else "good", display_text.call_status(call))
    return [status, *(("plain", str(fact)) for fact in facts if fact)]


def state_change(row: Row) -> tuple[TextPart, ...]:
    """Return how a call changed the value of a variable; empty if it is new, or long."""
    before, after = row["before"], row["value"]
    if before is None or max(len(before), len(after)) > MAX_COMPARED:
        return ()
    return compare_texts(*map(display_text.variable_value, (before, after)))
