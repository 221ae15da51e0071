"""The inputs and final answers of stored conversations: they become tasks, and results to judge."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import polars as pl

from ltrain_instrument import attributes
from ltrain_instrument.privacy import MARK
from ltrain_instrument.quantity import quantity
from ltrain_transforms.traces import TEXT, Message, parse_json, read_message, read_messages

MAX_CHARACTERS = 65_536
"""Characters of a task's input; about 16,000 tokens, more than a small model reads."""
MAX_RESULTS = 3
MAX_SHOWN = 1_000
"""Characters of an input or an answer among the results to judge."""
HELD_OUT = 0.2
"""The share of the tasks that is held out."""
USERS = ("user", "human")

MEDIA, LONG, ALTERED, EMPTY, REPEATED = (
    "with images or other media",
    f"longer than {MAX_CHARACTERS:,} characters",
    "shortened or redacted before they were recorded",
    "without recorded content",
    "that repeat another one",
)
"""Reasons for which an input is not a task."""

COLUMNS = ("execution_id", "call_id", "parent_id", "seq", "start", "kind", "input", "output")
"""The columns of `calls` that are read; token ids would take most of the memory."""
Row = dict[str, Any]
"""A row of `calls`."""


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The input and the final answer of a conversation, shortened, with its evaluations."""

    input: str
    result: str
    evaluations: dict[str, float]


@dataclass(frozen=True, slots=True)
class Conversations:
    """The tasks and results of stored executions."""

    tasks: list[Row] = field(default_factory=list)
    """Each input once, in the order in which they were first recorded."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Inputs that are not tasks, by reason."""
    results: list[StoredResult] = field(default_factory=list)


def read_conversations(
    spans: pl.DataFrame, rows: pl.DataFrame, evaluations: pl.DataFrame
) -> Conversations:
    """Return the inputs and some results of the executions of `spans`.

    Args:
        rows: the calls of the executions.
        evaluations: the evaluations that count, of the table `EVALUATIONS`.
    """
    altered = _altered(spans)
    scores = _scores(evaluations)
    tasks, left_out = dict[str, Row](), Counter[str]()
    results = dict[str, StoredResult]()
    ordered = rows.select(COLUMNS).sort("start", "seq")
    for frame in ordered.partition_by("execution_id", maintain_order=True):
        calls = frame.to_dicts()
        if not any(call["kind"] == "llm" for call in calls):
            continue
        text, fault = _input(calls, altered)
        if fault:
            left_out[fault] += 1
            continue
        key = _key(text)
        if key in tasks:
            left_out[REPEATED] += 1
        tasks.setdefault(key, {"id": key, "input": text})
        answer = _answer(calls)
        if answer:
            execution = calls[0]["execution_id"]
            stored = StoredResult(_shortened(text), _shortened(answer), scores.get(execution, {}))
            results.setdefault(answer, stored)
    return Conversations(list(tasks.values()), dict(left_out), _different([*results.values()]))


def hold_out(tasks: list[Row]) -> tuple[list[Row], list[Row]]:
    """Return the tasks to learn from and the held-out tasks, by the hash of their ids.

    A task is on the same side when other tasks come, except that at least one of two tasks is held
    out, and at most half of them.
    """
    by_hash = sorted(tasks, key=lambda task: _fraction(task["id"]))
    count = sum(_fraction(task["id"]) < HELD_OUT for task in tasks)
    count = min(max(count, 1), len(tasks) // 2)
    held_out = {task["id"] for task in by_hash[:count]}
    return (
        [task for task in tasks if task["id"] not in held_out],
        [task for task in tasks if task["id"] in held_out],
    )


def _fraction(id: str) -> float:
    digest = sha256(str(id).encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:4]) / 2**32


def _key(text: str) -> str:
    return f"input-{sha256(text.encode()).hexdigest()[:12]}"


def _altered(spans: pl.DataFrame) -> set[str]:
    """Return the spans of which content was shortened or redacted."""
    attribute = pl.col("attributes").map
    is_altered = attribute.get(attributes.CUT).is_not_null() | (
        attribute.get(attributes.REDACTED) == "true"
    )
    return set(spans.filter(is_altered.fill_null(False))["span_id"])


def _input(calls: list[Row], altered: set[str]) -> tuple[str, str]:
    """Return the text that a conversation began with, or the reason why it is not a task."""
    for text, span, has_media in _inputs(calls):
        if has_media:
            return "", MEDIA
        if len(text) > MAX_CHARACTERS:
            return "", LONG
        if span in altered or MARK in text:
            return "", ALTERED
        return text, ""
    return "", EMPTY


def _inputs(calls: list[Row]) -> Iterator[tuple[str, str, bool]]:
    """Yield texts that may be the input, the best first: of the root span, of a first message.

    With each come the span that has it and whether it has media.
    """
    for call in calls:
        if call["parent_id"] is None and call["kind"] in ("agent", "node") and call["input"]:
            message = _root_input(parse_json(call["input"]))
            if message is not None:
                yield message.text.strip(), call["call_id"], _has_media(message)
    for call in calls:
        if call["kind"] == "llm":
            for message in read_messages(call["input"]):
                text, has_media = message.text.strip(), _has_media(message)
                if message.role in USERS and (text or has_media):
                    yield text, call["call_id"], has_media


def _root_input(value: Any) -> Message | None:
    """Return the input of an agent or a graph as a message: text, one field, or messages."""
    if isinstance(value, str):
        return _message(value)
    if not isinstance(value, Mapping):
        return None
    messages = value.get("messages")
    if isinstance(messages, list):
        return next((each for each in map(_message, messages) if each is not None), None)
    texts = [each for each in value.values() if isinstance(each, str) and each.strip()]
    return _message(texts[0]) if len(texts) == len(value) == 1 else None


def _message(value: Any) -> Message | None:
    """Return a user's message in one of LangChain's forms or OpenAI's; None for another one."""
    if isinstance(value, str):
        value = {"role": "user", "content": value}
    elif isinstance(value, list) and len(value) == 2:
        value = {"role": value[0], "content": value[1]}
    elif isinstance(value, Mapping) and isinstance(value.get("data"), Mapping):
        value = {"role": value.get("type"), "content": value["data"].get("content")}
    if not isinstance(value, Mapping) or value.get("role") not in USERS:
        return None
    message = read_message(dict(value))
    return message if message.text.strip() or _has_media(message) else None


def _has_media(message: Message) -> bool:
    return any(part.type != TEXT for part in message.parts)


def _answer(calls: list[Row]) -> str:
    """Return the text of the last answer of a model."""
    for call in reversed(calls):
        if call["kind"] == "llm" and call["output"]:
            text = "".join(message.text for message in read_messages(call["output"])).strip()
            if text:
                return text
    return ""


def _shortened(text: str) -> str:
    rest = len(text) - MAX_SHOWN
    return text if rest <= 0 else f"{text[:MAX_SHOWN]}… ({quantity(rest, 'more character')})"


def _scores(evaluations: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return the evaluations of each execution by name."""
    scores = dict[str, dict[str, float]]()
    for each in evaluations.sort("start").iter_rows(named=True):
        scores.setdefault(each["execution_id"], {})[each["name"]] = each["value"]
    return scores


def _different(results: list[StoredResult]) -> list[StoredResult]:
    """Return a few results, of evaluations that differ where there are such."""
    firsts = {tuple(each.evaluations.items()): each for each in reversed(results)}
    chosen = [*firsts.values(), *(each for each in results if each not in firsts.values())]
    return chosen[:MAX_RESULTS]
