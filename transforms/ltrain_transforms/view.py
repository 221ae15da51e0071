"""How a rollout and a dataset look in the terminal."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ltrain_transforms.dataset import Dataset
from ltrain_transforms.dialects.messages import text_of, tool_requests
from ltrain_transforms.show import Shown
from ltrain_transforms.spans import parsed

WIDE = 72
"""Characters of a text that is shown in a cell."""

Row = dict[str, Any]


def rollout(shown: Shown) -> RenderableType:
    """Lay out one rollout: how it went, calls, state, rewards, advantages, drops."""
    calls = {row["call_id"]: row for row in shown.tables["calls"].to_dicts()}
    parts: list[RenderableType] = []
    for execution in shown.tables["executions"].to_dicts():
        own = {
            name: _of(frame, execution["execution_id"])
            for name, frame in shown.tables.items()
            if name != "drops"
        }
        parts += [
            _head(execution, shown),
            _calls(own["calls"], own["rewards"]),
            _states(own["states"], calls),
            _rewards(own["rewards"], calls),
            _advantages(own["transitions"], calls),
        ]
    parts.append(_drops(shown.tables["drops"].to_dicts(), calls))
    return Group(*parts)


def _of(frame: pl.DataFrame, execution: str) -> list[Row]:
    return frame.filter(pl.col("execution_id") == execution).to_dicts()


def _head(execution: Row, shown: Shown) -> Text:
    line = Text()
    line.append(f"rollout {execution['rollout_id'] or execution['execution_id']}", "bold")
    place = ("run_id", "mode", "wave", "task_id", "sample_index")
    words = ("run", "mode", "wave", "task", "sample")
    known = zip(words, map(execution.get, place), strict=True)
    line.append("  " + ", ".join(f"{word} {value}" for word, value in known if value is not None))
    outcome = execution["outcome"] or "no outcome"
    line.append(
        f"\nattempt {execution['attempt']}: {outcome} after {execution['wall']:.2f} s "
        f"(critical path {execution['critical_path']:.2f} s); {execution['llm_calls']} LLM and "
        f"{execution['tool_calls']} tool calls in {execution['traces']} trace(s); "
        f"{execution['spans_seen']} of {execution['spans_expected']} reported spans"
    )
    if execution["superseded"]:
        line.append("; superseded by a later attempt", "yellow")
    elif not execution["complete"]:
        line.append("; incomplete", "yellow")
    return line.append(_standing(execution, shown.group))


def _standing(execution: Row, group: pl.DataFrame) -> str:
    own = group.filter(pl.col("execution_id") == execution["execution_id"])["reward"].to_list()
    if not own:
        return ""
    rewards = group["reward"].to_list()
    mean = sum(rewards) / len(rewards)
    return f"\noutcome {own[0]:g}; its group of {len(rewards)}: mean {mean:.3f}"


def _table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        expand=False,
        box=None,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def _calls(calls: list[Row], rewards: list[Row]) -> RenderableType:
    made = _table(
        "Calls", "#", "call", "agent", "status", "s", "tokens", "version", "output", "reward",
        right=("#", "s", "tokens", "version", "reward"),
    )  # fmt: skip
    depth: dict[str, int] = {}
    given: dict[str, float] = {}
    for reward in rewards:
        if reward["call_id"]:
            given[reward["call_id"]] = given.get(reward["call_id"], 0.0) + reward["value"]
    for call in sorted(calls, key=lambda row: int(row["seq"])):
        depth[call["call_id"]] = depth.get(call["parent_id"], -1) + 1
        indent = "  " * depth[call["call_id"]]
        failed = call["status"] == "error"
        made.add_row(
            str(call["seq"]),
            Text(f"{indent}{call['kind']} {call['name']}"),
            Text(_place(call)),
            Text(_status(call), "red" if failed else ""),
            f"{(call['end'] - call['start']) / 1e9:.2f}",
            _tokens(call),
            "" if call["policy_version"] is None else f"{call['policy']} v{call['policy_version']}",
            Text(_said(call)),
            _number(given.get(call["call_id"])),
        )
    return made


def _place(call: Row) -> str:
    """Give the agent, and the node where it is another name."""
    names = dict.fromkeys(name for name in (call["agent"], call["node"]) if name)
    return "/".join(names)


def _status(call: Row) -> str:
    return f"error: {call['error_type']}" if call["error_type"] else str(call["status"])


def _tokens(call: Row) -> str:
    prompt, responses = call["prompt_token_ids"], call["response_token_ids"]
    if prompt is not None:
        return f"{len(prompt)}+{sum(map(len, responses))} ids"
    if call["output_tokens"] is None:
        return ""
    return f"{call['input_tokens'] or 0}+{call['output_tokens']}"


def _said(call: Row) -> str:
    """Give what came out: an answer's text and tool requests, a tool's result."""
    if call["kind"] in ("agent", "node"):
        return ""
    if call["kind"] != "llm":
        return _short(call["result"] or call["output"])
    messages = parsed(call["output"]) or []
    asked = [f"{one.get('name')}({_json(one.get('arguments'))})" for one in tool_requests(messages)]
    return _short(" ".join([text_of(messages), *asked]))


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(text: str | None) -> str:
    flat = " ".join((text or "").split())
    return flat if len(flat) <= WIDE else flat[: WIDE - 1] + "…"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def _named(call_id: str | None, calls: Mapping[str, Row]) -> str:
    if call_id is None:
        return "rollout"
    call = calls.get(call_id)
    return f"#{call['seq']} {call['name']}" if call is not None else f"span {call_id}"


def _states(states: list[Row], calls: Mapping[str, Row]) -> RenderableType:
    if not states:
        return Text("State: no variables seen", "dim")
    made = _table("State", "#", "variable", "value", "written by", right=("#",))
    for state in states:
        by = "input" if state["written_by"] is None else _named(state["written_by"], calls)
        made.add_row(str(state["t"]), state["variable"], Text(_short(state["value"])), Text(by))
    return made


def _rewards(rewards: list[Row], calls: Mapping[str, Row]) -> RenderableType:
    if not rewards:
        return Text("Rewards: none", "dim")
    made = _table("Rewards", "rule", "source", "value", "credited to", "evidence", right=("value",))
    for reward in rewards:
        to, evidence = (_named(reward[name], calls) for name in ("call_id", "evidence"))
        cells = (reward["rule"], reward["source"], _number(reward["value"]), to, evidence)
        made.add_row(*(Text(cell) for cell in cells))
    return made


def _advantages(transitions: list[Row], calls: Mapping[str, Row]) -> RenderableType:
    if not transitions:
        return Text("Advantages: no call of the trained policy counts", "dim")
    numbers = ("reward", "returns", "outcome_advantage", "process_advantage", "advantage")
    titles = ("reward", "return", "outcome", "process", "advantage")
    made = _table("Advantages", "call", *titles, right=titles)
    for transition in transitions:
        cells = (_number(transition[name]) for name in numbers)
        made.add_row(Text(_named(transition["call_id"], calls)), *cells)
    return made


def _drops(drops: list[Row], calls: Mapping[str, Row]) -> RenderableType:
    if not drops:
        return Text("Drops: none", "dim")
    made = _table("Drops", "stage", "what", "reason", "detail")
    for drop in drops:
        what = _named(drop["id"], calls) if drop["stage"] in ("rows", "rewards") else drop["id"]
        made.add_row(drop["stage"], Text(what), drop["reason"], Text(drop["detail"]))
    return made


def dataset(given: Dataset) -> RenderableType:
    """Lay out a dataset: where it comes from, rows of each table, drops by reason."""
    manifest = given.manifest
    head = Text(f"dataset {given.id}", "bold")
    head.append(f"  {given.path}", "default")
    head.append(f"\nfrom {manifest['store']}, ingested up to {manifest['watermark']}")
    head.append(
        f"\nrecipe {manifest['recipe_digest']}; policy versions {manifest['policy_versions']}"
    )
    rows = _table("Rows", "table", "rows", right=("rows",))
    for name, count in given.counts.items():
        rows.add_row(name, str(count))
    counted = given.drops.group_by("stage", "reason", "detail").len().sort("stage", "reason")
    drops = _table("Drops", "stage", "reason", "count", "detail", right=("count",))
    for row in counted.iter_rows(named=True):
        drops.add_row(row["stage"], row["reason"], str(row["len"]), Text(row["detail"]))
    return Group(head, rows, drops if counted.height else Text("Drops: none", "dim"))
