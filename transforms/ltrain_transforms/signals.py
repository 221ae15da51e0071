"""Ready columns: what rules read of a call beside the columns of `calls`.

Each looks at one execution only, so that batches cannot change it, and is computed only where a
rule names it.
"""

import json
from collections.abc import Callable, Collection, Mapping

import polars as pl

from ltrain_transforms import tool_faults
from ltrain_transforms.dialects.messages import message_parts, messages_text
from ltrain_transforms.scripts import foreign, mix
from ltrain_transforms.untrusted import parse_json

WORD = r"[0-9A-Za-z_\u{80}-\u{2FFF}]{3,}|[0-9]+|[\u{3000}-\u{10FFFF}]"
"""What a result is recognised by when an answer repeats it: of Chinese and Japanese a character."""

ESCAPE = r"\\[nrtbf]"
"""JSON's escapes of white space, whose letter would stick to the next word."""

DEEPEST = 100
"""Levels that are looked at: parents that enclose each other would have no end."""


def with_signals(calls: pl.DataFrame, wanted: Collection[str]) -> pl.DataFrame:
    """Add those of the columns of `SIGNALS` that are wanted; `fits` is each rule's own."""
    for name, make in MAKERS.items():
        if name in wanted and name not in calls.columns:
            calls = make(calls)
    return calls


def with_fit(calls: pl.DataFrame, schema: Mapping[str, object]) -> pl.DataFrame:
    """Add `fits`: whether an LLM call's answer, else its output, is JSON of this schema."""
    text = json.dumps(schema)
    said = with_signals(calls, ["answer"]).select(
        pl.when(pl.col("kind") == "llm").then("answer").otherwise("output")
    )
    fits = [None if one is None else tool_faults.fits(text, one) for one in said.to_series()]
    return calls.with_columns(fits=pl.Series(fits, dtype=pl.Boolean))


def _answer(calls: pl.DataFrame) -> pl.DataFrame:
    is_llm = pl.when(pl.col("kind") == "llm").then("output")
    said = [_spoken(text) for text in calls.select(is_llm).to_series()]
    return calls.with_columns(answer=pl.Series(said, dtype=pl.String))


def _spoken(output: str | None) -> str | None:
    messages = parse_json(output)
    return (messages_text(messages) or None) if isinstance(messages, list) else None


def _final(calls: pl.DataFrame) -> pl.DataFrame:
    spoken = with_signals(calls, ["answer"])
    order = pl.when(pl.col("answer").is_not_null()).then("seq")
    return spoken.with_columns(final=(order == order.max().over("execution_id")).fill_null(False))


def _seconds(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.with_columns(seconds=(pl.col("end") - pl.col("start")) * 1e-9)


def _depth(calls: pl.DataFrame) -> pl.DataFrame:
    """Count the agents above each call; what only encloses agents, a workflow, is none itself."""
    above = _above(calls)
    asked = calls.filter(pl.col("kind") == "llm").select("execution_id", "call_id")
    nearest = above.join(asked, ["execution_id", "call_id"], "semi").sort("level")
    own = nearest.unique(["execution_id", "call_id"], keep="first").select("execution_id", "agent")
    depth = above.join(own.unique(), ["execution_id", "agent"], "semi")
    counted = depth.group_by("execution_id", "call_id").agg(depth=pl.len().cast(pl.Int32))
    joined = calls.join(counted, ["execution_id", "call_id"], "left", maintain_order="left")
    return joined.with_columns(pl.col("depth").fill_null(0))


def _above(calls: pl.DataFrame) -> pl.DataFrame:
    """Give each call with each agent that encloses it: `level` 1 is the nearest enclosing call."""
    tree = calls.select("execution_id", agent="call_id", kind="kind", over="parent_id")
    step = calls.select("execution_id", "call_id", agent="parent_id")
    found = []
    for level in range(1, DEEPEST):
        step = step.join(tree, ["execution_id", "agent"])
        if step.is_empty():
            break
        agents = step.filter(pl.col("kind") == "agent")
        found.append(agents.select("execution_id", "call_id", "agent", level=pl.lit(level)))
        step = step.select("execution_id", "call_id", agent="over")
    none = step.select("execution_id", "call_id", "agent", level=pl.lit(0)).clear()
    return pl.concat([none, *found])


def _script_mix(calls: pl.DataFrame) -> pl.DataFrame:
    spoken = with_signals(calls, ["answer"])
    return spoken.with_columns(script_mix=mix(spoken["answer"]))


def _foreign_script(calls: pl.DataFrame) -> pl.DataFrame:
    spoken = with_signals(calls, ["answer"])
    is_llm = pl.when(pl.col("kind") == "llm").then("input")
    shown = pl.Series([_shown(text) for text in calls.select(is_llm).to_series()], dtype=pl.String)
    return spoken.with_columns(foreign_script=foreign(spoken["answer"], shown))


def _shown(text: str | None) -> str | None:
    """Give all text of the messages in that is not the model's own."""
    messages = parse_json(text)
    if not isinstance(messages, list):
        return None
    others = [one for one in messages if isinstance(one, dict) and one.get("role") != "assistant"]
    results = (
        str(part.get("response") or part.get("result") or "")
        for message in others
        for part in message_parts(message)
    )
    return messages_text(others) + "".join(results)


def _tool_faults(calls: pl.DataFrame) -> pl.DataFrame:
    is_llm = calls["kind"] == "llm"
    rows = zip(is_llm, calls["tools"], calls["output"], strict=True)
    found = [tool_faults.faults(tools, out) if llm else (None, None) for llm, tools, out in rows]
    return calls.with_columns(
        unknown_tools=pl.Series([unknown for unknown, _ in found], dtype=pl.Int32),
        invalid_requests=pl.Series([invalid for _, invalid in found], dtype=pl.Int32),
    )


def _used(calls: pl.DataFrame) -> pl.DataFrame:
    """Look for the words of a tool's result, less what its requester had seen, in later outputs."""
    llm = calls.filter(pl.col("kind") == "llm")
    said = _words(llm.select("execution_id", "seq", text="output"))
    last = said.group_by("execution_id", "word").agg(last=pl.col("seq").max())
    latest = llm.group_by("execution_id").agg(latest=pl.col("seq").max())
    seen = llm.select(
        "execution_id",
        requested_by="call_id",
        seen=pl.concat_str("input", "output", separator=" ", ignore_nulls=True).str.to_lowercase(),
    )
    results = calls.filter(pl.col("kind") == "tool").join(latest, "execution_id")
    asked = results.filter(pl.col("latest") > pl.col("seq")).join(
        seen, ["execution_id", "requested_by"], "left"
    )
    told = ("execution_id", "call_id", "seq", "seen")
    known = pl.col("seen").str.contains(pl.col("word"), literal=True).fill_null(False)
    new = _words(asked.select(*told, text="result")).filter(~known)
    used = (
        new.join(last, ["execution_id", "word"], "left")
        .group_by("execution_id", "call_id")
        .agg(used=(pl.col("last") > pl.col("seq")).fill_null(False).any())
    )
    return calls.join(used, ["execution_id", "call_id"], "left", maintain_order="left")


def _words(rows: pl.DataFrame) -> pl.DataFrame:
    """Give a row for each word of `text`, as `word`."""
    spaced = pl.col("text").str.replace_all(ESCAPE, " ").str.to_lowercase()
    words = spaced.str.extract_all(WORD).list.unique()
    spread = rows.with_columns(word=words).drop("text").explode("word")
    return spread.filter(pl.col("word").is_not_null())


MAKERS: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "answer": _answer,
    "final": _final,
    "seconds": _seconds,
    "depth": _depth,
    "script_mix": _script_mix,
    "foreign_script": _foreign_script,
    "unknown_tools": _tool_faults,
    "invalid_requests": _tool_faults,
    "used": _used,
}

READS: dict[str, tuple[str, ...]] = {
    "answer": ("kind", "output"),
    "final": ("kind", "output"),
    "seconds": ("start", "end"),
    "depth": ("parent_id", "kind"),
    "script_mix": ("kind", "output"),
    "foreign_script": ("kind", "input", "output"),
    "unknown_tools": ("kind", "output", "tools"),
    "invalid_requests": ("kind", "output", "tools"),
    "used": ("kind", "input", "output", "result", "requested_by"),
    "fits": ("kind", "output"),
}
"""The columns of `calls` that each is made from."""
