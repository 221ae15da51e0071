"""Derived columns, which rules may name beside the columns of `calls`.

Each is computed from the calls of one execution, so that the cut into batches cannot change it, and
only where a rule names it.
"""

import json
from collections.abc import Callable, Collection, Mapping

import polars as pl

from ltrain_transforms.rules import tool_schema
from ltrain_transforms.rules.unicode_scripts import foreign_script_share, minority_script_share
from ltrain_transforms.traces import RESULT, TEXT, messages_text, read_messages

WORD = r"[0-9A-Za-z_\u{80}-\u{2FFF}]{3,}|[0-9]+|[\u{3000}-\u{10FFFF}]"
"""The unit in which an answer may repeat a result: a word, or one Chinese or Japanese character."""

ESCAPE = r"\\[nrtbf]"
"""JSON's escapes of white space; without their removal, the letter would join the next word."""

MAX_DEPTH = 100
"""Levels of enclosing calls that are followed: a cycle of parents has no end."""


def add_derived_columns(calls: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """Add those columns of `DERIVED_COLUMNS` that `names` contains, except `fits`."""
    for name, derive in DERIVATIONS.items():
        if name in names and name not in calls.columns:
            calls = derive(calls)
    return calls


def add_schema_match(calls: pl.DataFrame, schema: Mapping[str, object]) -> pl.DataFrame:
    """Add `fits`: whether an LLM call's answer, or another call's output, is JSON of `schema`."""
    text = json.dumps(schema)
    values = add_derived_columns(calls, ["answer"]).select(
        pl.when(pl.col("kind") == "llm").then("answer").otherwise("output")
    )
    fits = [
        None if value is None else tool_schema.matches_schema(text, value)
        for value in values.to_series()
    ]
    return calls.with_columns(fits=pl.Series(fits, dtype=pl.Boolean))


def _add_answer(calls: pl.DataFrame) -> pl.DataFrame:
    outputs = pl.when(pl.col("kind") == "llm").then("output")
    answers = [_answer_text(output) for output in calls.select(outputs).to_series()]
    return calls.with_columns(answer=pl.Series(answers, dtype=pl.String))


def _answer_text(output: str | None) -> str | None:
    return messages_text(read_messages(output)) or None


def _add_final(calls: pl.DataFrame) -> pl.DataFrame:
    answered = add_derived_columns(calls, ["answer"])
    order = pl.when(pl.col("answer").is_not_null()).then("seq")
    return answered.with_columns(final=(order == order.max().over("execution_id")).fill_null(False))


def _add_seconds(calls: pl.DataFrame) -> pl.DataFrame:
    seconds = (pl.col("end") - pl.col("start")) * 1e-9
    return calls.with_columns(seconds=pl.when(~pl.col("untimed")).then(seconds))


def _add_depth(calls: pl.DataFrame) -> pl.DataFrame:
    """Count the agents above each call.

    An agent counts only if it is the nearest agent of an LLM call; a workflow that merely encloses
    agents does not.
    """
    ancestors = _ancestor_agents(calls)
    llm = calls.filter(pl.col("kind") == "llm").select("execution_id", "call_id")
    nearest = (
        ancestors.join(llm, ["execution_id", "call_id"], "semi")
        .sort("level")
        .unique(["execution_id", "call_id"], keep="first")
        .select("execution_id", "agent")
    )
    counted = ancestors.join(nearest.unique(), ["execution_id", "agent"], "semi")
    depth = counted.group_by("execution_id", "call_id").agg(depth=pl.len().cast(pl.Int32))
    joined = calls.join(depth, ["execution_id", "call_id"], "left", maintain_order="left")
    return joined.with_columns(pl.col("depth").fill_null(0))


def _ancestor_agents(calls: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each call and each agent above it; `level` 1 is the direct parent."""
    tree = calls.select("execution_id", agent="call_id", kind="kind", parent="parent_id")
    step = calls.select("execution_id", "call_id", agent="parent_id")
    levels = []
    for level in range(1, MAX_DEPTH):
        step = step.join(tree, ["execution_id", "agent"])
        if step.is_empty():
            break
        agents = step.filter(pl.col("kind") == "agent")
        levels.append(agents.select("execution_id", "call_id", "agent", level=pl.lit(level)))
        step = step.select("execution_id", "call_id", agent="parent")
    empty = step.select("execution_id", "call_id", "agent", level=pl.lit(0)).clear()
    return pl.concat([empty, *levels])


def _add_script_mix(calls: pl.DataFrame) -> pl.DataFrame:
    answered = add_derived_columns(calls, ["answer"])
    return answered.with_columns(script_mix=minority_script_share(answered["answer"]))


def _add_foreign_script(calls: pl.DataFrame) -> pl.DataFrame:
    answered = add_derived_columns(calls, ["answer"])
    inputs = calls.select(pl.when(pl.col("kind") == "llm").then("input")).to_series()
    shown = pl.Series([_shown_text(messages) for messages in inputs], dtype=pl.String)
    return answered.with_columns(foreign_script=foreign_script_share(answered["answer"], shown))


def _shown_text(text: str | None) -> str | None:
    """Return the text of all input messages that the model did not write."""
    messages = read_messages(text)
    if not messages:
        return None
    parts = [part for message in messages if not message.is_assistant for part in message.parts]
    texts = [part.text for part in parts if part.type == TEXT]
    return "".join([*texts, *(part.result.text for part in parts if part.type == RESULT)])


def _add_faulty_requests(calls: pl.DataFrame) -> pl.DataFrame:
    is_llm = calls["kind"] == "llm"
    rows = zip(is_llm, calls["tools"], calls["output"], strict=True)
    counts = [
        tool_schema.count_faulty_requests(tools, output) if llm else (None, None)
        for llm, tools, output in rows
    ]
    return calls.with_columns(
        unknown_tools=pl.Series([unknown for unknown, _ in counts], dtype=pl.Int32),
        invalid_requests=pl.Series([invalid for _, invalid in counts], dtype=pl.Int32),
    )


def _add_used(calls: pl.DataFrame) -> pl.DataFrame:
    """Search later outputs for the words of a tool's result that its requester had not seen."""
    llm = calls.filter(pl.col("kind") == "llm")
    words = _split_words(llm.select("execution_id", "seq", text="output"))
    last = words.group_by("execution_id", "word").agg(last=pl.col("seq").max())
    latest = llm.group_by("execution_id").agg(latest=pl.col("seq").max())
    contexts = llm.select(
        "execution_id",
        requested_by="call_id",
        context=pl.concat_str(
            "input", "output", separator=" ", ignore_nulls=True
        ).str.to_lowercase(),
    )
    results = calls.filter(pl.col("kind") == "tool").join(latest, "execution_id")
    followed = results.filter(pl.col("latest") > pl.col("seq")).join(
        contexts, ["execution_id", "requested_by"], "left"
    )
    columns = ("execution_id", "call_id", "seq", "context")
    known = pl.col("context").str.contains(pl.col("word"), literal=True).fill_null(False)
    new = _split_words(followed.select(*columns, text="result")).filter(~known)
    used = (
        new.join(last, ["execution_id", "word"], "left")
        .group_by("execution_id", "call_id")
        .agg(used=(pl.col("last") > pl.col("seq")).fill_null(False).any())
    )
    return calls.join(used, ["execution_id", "call_id"], "left", maintain_order="left")


def _split_words(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each different word of `text`, as `word`."""
    spaced = pl.col("text").str.replace_all(ESCAPE, " ").str.to_lowercase()
    words = spaced.str.extract_all(WORD).list.unique()
    spread = rows.with_columns(word=words).drop("text").explode("word")
    return spread.filter(pl.col("word").is_not_null())


DERIVATIONS: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "answer": _add_answer,
    "final": _add_final,
    "seconds": _add_seconds,
    "depth": _add_depth,
    "script_mix": _add_script_mix,
    "foreign_script": _add_foreign_script,
    "unknown_tools": _add_faulty_requests,
    "invalid_requests": _add_faulty_requests,
    "used": _add_used,
}

INPUTS: dict[str, tuple[str, ...]] = {
    "answer": ("kind", "output"),
    "final": ("kind", "output"),
    "seconds": ("start", "end", "untimed"),
    "depth": ("parent_id", "kind"),
    "script_mix": ("kind", "output"),
    "foreign_script": ("kind", "input", "output"),
    "unknown_tools": ("kind", "output", "tools"),
    "invalid_requests": ("kind", "output", "tools"),
    "used": ("kind", "input", "output", "result", "requested_by"),
    "fits": ("kind", "output"),
}
"""The columns of `calls` from which each column is derived."""
