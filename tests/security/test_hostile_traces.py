"""No hostile trace ends a build: unreadable records become drops, and the rest is built."""

import json
import time
import tomllib
from collections import Counter
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.otlp import insert_otlp, open_empty_store
from tests.property_examples import examples
from tests.security.hostile import (
    BROKEN,
    HUGE,
    KINDS,
    NUMBERS,
    PYTHON,
    TOKENS,
    TRACES,
    Trace,
    deep,
    frame,
    smallest,
    trace,
)
from tests.transforms.made import NOON, Row, span, spans

from ltrain_transforms.calls import calls
from ltrain_transforms.datasets import derive
from ltrain_transforms.datasets.pipeline import DerivedTables
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.show import print_shown, render_page
from ltrain_transforms.show.rollout import RolloutTables
from ltrain_transforms.show.tree import build_tree

RECIPE = """
source = { run = "r", idle_timeout = 5.0 }
policy = [{ name = "policy", where = "CAST(input AS INT) IS NULL" }]

[[reward]]
name = "answer"
evaluation = "reward"
from = "any"

[[reward]]
name = "rows"
on = "tool"
when = "CAST(rows AS INT) >= 0 OR result RLIKE name"
value = "CAST(result AS INT) / input_tokens"
let = { rows = "result:$.rows" }
credit_to = "requester"

[[reward]]
name = "signals"
on = "llm"
when = "final OR used OR unknown_tools > 0 OR invalid_requests > 0 OR fits OR depth > 1"
value = "script_mix + foreign_script + seconds"
schema = { type = "object" }

[[reward]]
name = "fast"
on = "rollout"
when = "wall < group_wall"
value = "CAST(rollout_id AS DOUBLE)"
"""

RECIPES = Recipe.model_validate(tomllib.loads(RECIPE))
TOGETHER = 20
"""Traces of one build: a frame costs about as much for twenty as for one."""


def built(traces: list[Trace]) -> DerivedTables:
    """Build and show a dataset; every span must be in a lineage or in the drops."""
    rows = frame(traces)
    made = derive(rows, RECIPES)
    tables = made.tables
    lineage = [
        tables["calls"]["source_spans"].explode(empty_as_null=True),
        tables["executions"]["source_spans"].explode(empty_as_null=True),
        tables["rewards"]["evidence"],
        tables["drops"]["id"],
        tables["drops"]["id"].str.split(":").list.first(),
    ]
    assert set(rows["span_id"]) <= set(pl.concat(lineage))
    _show(made)
    return made


def _show(made: DerivedTables) -> None:
    """Show the first execution as text, HTML and JSON."""
    own = pl.col("execution_id") == "e0.1"
    tables = {name: table.filter(own) for name, table in made.tables.items() if name != "drops"}
    shown = build_tree(
        RolloutTables("ro0", {**tables, "drops": made.tables["drops"]}, made.outcomes, "test")
    )
    print_shown(shown, Console(file=StringIO(), width=80))
    render_page(shown).encode()
    json.dumps(shown.data, default=str)


def fails(one: Trace) -> bool:
    try:
        built([one])
    except Exception:  # whatever it is: the strategy looks for the span that makes it so
        return True
    return False


@settings(
    max_examples=examples(2_000 // TOGETHER, change=500 // TOGETHER),
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(TRACES, min_size=TOGETHER, max_size=TOGETHER))
def test_no_trace_ends_a_build(traces: list[Trace]) -> None:
    try:
        built(traces)
    except Exception as error:
        failing = next((one for one in traces if fails(one)), None)
        assert failing is None, f"{error!r} of {smallest(failing, fails)}"
        raise


# what ended a build before


def read(*fields: dict[str, str], **more: Any) -> tuple[pl.DataFrame, list[tuple[str, str]]]:
    """Return the calls of hostile spans and a good one, and id and reason of the drops."""
    good = span("good", {"gen_ai.operation.name": "chat"}, at=(99_999, 100_000))
    bad = [span(f"bad{n}", one, at=(n, n + 1), **more) for n, one in enumerate(fields)]
    made = derive(spans(*bad, good), RECIPES)
    assert "good" in made.tables["calls"]["call_id"].to_list()
    drops = made.tables["drops"].filter(pl.col("stage").is_in(["spans", "calls", "states"]))
    return made.tables["calls"], drops.select("id", "reason").rows()


@pytest.mark.parametrize(
    "name",
    [
        f"llm.input_messages.{HUGE}.message.role",
        "llm.input_messages.999999999.message.role",
        f"llm.output_messages.0.message.tool_calls.{HUGE}.tool_call.id",
        f"annotations.{HUGE}.annotation.score",
        "annotations.٣.annotation.score",
    ],
)
def test_an_index_beyond_the_list(name: str) -> None:
    found, _ = read({"openinference.span.kind": "LLM", name: "user"})
    assert set(found["call_id"]) == {"bad0", "good"}


USAGE = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "ltrain.policy.version")


def test_a_negative_count_is_refused() -> None:
    numbers = (*NUMBERS, "4294967296", "9223372036854775807")
    chat = {"gen_ai.operation.name": "chat"}
    found, _ = read(*(chat | dict.fromkeys(USAGE, one) for one in numbers), scope="ltrain.gateway")
    counted = found.select("input_tokens", "output_tokens").rows()
    assert len(counted) == len(numbers) + 1
    assert all(count is None or 0 <= count < 1 << 63 for row in counted for count in row)


@pytest.mark.parametrize("reported", [-3, 2**31, 2**63 - 1])
def test_a_report_of_spans_that_no_process_has(reported: int) -> None:
    names = {"rollout_id": "ro", "reported": reported, "name": "ltrain.process"}
    made = derive(spans({**span("a"), **names}, {**span("b"), **names, "process": "x"}), RECIPES)
    [expected] = made.tables["executions"]["spans_expected"]
    assert 0 <= expected < 1 << 31


@pytest.mark.parametrize("scope", ["autogen_agentchat", "smolagents", "llama_index"])
@pytest.mark.parametrize("kind", ["AGENT", "TOOL"])
def test_python_literals_that_are_none(scope: str, kind: str) -> None:
    fields = [
        {"openinference.span.kind": kind, "input.value": text, "output.value": text}
        for text in PYTHON
    ]
    found, _ = read(*fields, scope=f"openinference.instrumentation.{scope}")
    assert found.height == len(PYTHON) + 1


def test_a_long_text_of_autogen_is_read_in_linear_time() -> None:
    text = json.dumps({"messages": ["id=" + " source='" * 100_000 + " content='" * 100_000]})
    fields = {"openinference.span.kind": "AGENT", "input.value": text}
    began = time.process_time()
    read(fields, scope="openinference.instrumentation.autogen_agentchat")
    assert time.process_time() - began < 10, "seconds; by backtracking it takes hours"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", list({str(kind): kind for kind in KINDS}.values()), ids=str)
def test_json_that_is_broken_or_beyond_use(kind: dict[str, str]) -> None:
    attributes = (
        *("gen_ai.input.messages", "gen_ai.output.messages", "metadata", "input.value"),
        *("output.value", "gen_ai.tool.call.arguments", "langfuse.observation.input"),
        *("langfuse.observation.output", "langfuse.observation.usage_details", "gen_ai.prompt"),
        *("ai.prompt.messages", "ai.response.toolCalls", "traceloop.entity.output"),
        *("ltrain.prompt_token_ids", "ltrain.response_token_ids", "ltrain.response_logprobs"),
        *("prompt_token_ids", "response_token_ids", "logprobs.content"),
    )
    fields = ({**kind, **dict.fromkeys(attributes, text)} for text in (*BROKEN, *TOKENS))
    read(*fields, scope="ltrain.gateway")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("role", [{}, [], 5, {"a": "\ud800"}])
@pytest.mark.parametrize("arguments", [{}, deep(60), 2**70])
def test_messages_whose_fields_have_other_types(role: Any, arguments: Any) -> None:
    request = {"type": "tool_call", "id": role, "name": role, "arguments": arguments}
    fields = json.dumps([{"role": role, "parts": [request, role], "finish_reason": role}])
    function = {"function": {"name": role, "arguments": arguments}}
    prompt = json.dumps([{"role": role, "content": role, "tool_calls": [function]}])
    rows = {"gen_ai.input.messages": prompt, "gen_ai.output.messages": fields}
    for kind in ("chat", "execute_tool", "invoke_agent"):
        _, drops = read({"gen_ai.operation.name": kind, **rows, "input.value": prompt})
        assert ("e.1", "unreadable") not in drops, "the states are read, too"


@pytest.mark.parametrize("at", [0, -(2**63), 2**63 - 1, 2**62])
def test_times_at_the_edges(at: int) -> None:
    rows: list[Row] = [
        {**span("a", {"gen_ai.operation.name": "chat"}), "start": at, "end": at},
        {**span("b", {"gen_ai.operation.name": "chat"}), "start": NOON, "end": NOON + 1},
    ]
    made = derive(spans(*rows), RECIPES)
    assert sorted(made.tables["calls"]["call_id"]) == ["a", "b"]


# what a reader raises


@pytest.mark.parametrize("failure", [RecursionError, pl.exceptions.PanicException])
def test_what_one_reader_cannot_read_is_a_drop(
    failure: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ltrain_transforms.dialects import gen_ai, registry

    def read_none(_: object) -> Any:
        raise failure("no end \ud800" + "x" * 500)

    failing = gen_ai.DIALECT._replace(read=read_none)
    others = [failing if one is gen_ai.DIALECT else one for one in registry.DIALECTS]
    assert failing in others
    monkeypatch.setattr(registry, "DIALECTS", tuple(others))
    registry._dialects.cache_clear()
    try:
        fields = {"gen_ai.operation.name": "chat", "openinference.span.kind": "LLM"}
        found, drops = calls(spans(span("both", fields), span("one", {"gen_ai.a": "b"})))
    finally:
        registry._dialects.cache_clear()
    assert found["call_id"].to_list() == ["both"]
    assert sorted(drops.select("stage", "id", "reason").rows()) == [
        ("calls", "both:gen_ai", "unreadable"),
        ("spans", "one:e.1", "unreadable"),
    ]
    assert f"{failure.__name__}: no end \ufffd" in drops["detail"][0]
    assert max(map(len, drops["detail"])) < 400


def test_events_that_cannot_be_read_are_a_drop_and_the_call_stays() -> None:
    fields = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    failed = {**span("one", fields), "status": "Error", "events": "[3]"}
    found, drops = calls(spans(failed))
    assert found.select("call_id", "model", "status").rows() == [("one", "m", "error")]
    assert drops.select("stage", "id", "reason").rows() == [("calls", "one:status", "unreadable")]


def test_cells_that_make_polars_panic_are_a_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    from ltrain_transforms.calls import from_spans as module

    def panic(_: object) -> Any:
        raise pl.exceptions.PanicException("no row")

    monkeypatch.setattr(module, "call_cells", panic)
    found, drops = calls(spans(span("one", {"gen_ai.operation.name": "chat"})))
    assert found.is_empty()
    assert drops.select("stage", "id", "reason").rows() == [("spans", "one:e.1", "unreadable")]


# rules


def test_a_rule_gives_null_only_where_it_fails() -> None:
    results = ["4", "x", HUGE, deep(300), "{", '{"rows": 2}', None]
    rows = [
        span(
            f"s{n}",
            {
                "gen_ai.operation.name": "execute_tool",
                **({"gen_ai.tool.call.result": text} if text else {}),
            },
            at=(n, n + 1),
        )
        for n, text in enumerate(results)
    ]
    text = RECIPE.split("[[reward]]")[0] + (
        '[[reward]]\nname = "r"\non = "tool"\nvalue = "CAST(result AS INT)"\n'
        'credit_to = "rollout"\n'
    )
    made = derive(spans(*rows), Recipe.model_validate(tomllib.loads(text)))
    assert made.tables["rewards"].select("evidence", "value").rows() == [("s0", 4.0)]
    assert Counter(made.tables["drops"]["reason"])["null_value"] == len(results) - 1


# a real store


def test_a_store_of_hostile_traces_is_built(tmp_path: Path) -> None:
    from tests.security.stored import request

    from ltrain_transforms.datasets import build
    from ltrain_transforms.exports import BadExport, ExportOptions, export_dataset
    from ltrain_transforms.reports import report_rules
    from ltrain_transforms.source import Selection

    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, request([trace(seed) for seed in range(150)]))
        made = build(store, RECIPES, tmp_path / "out", run="r", mode="all")
        assert made.counts["executions"] > 100
        assert report_rules(store, RECIPES, Selection(run="r", mode=None)).executions > 100
    for form in ("tasks", "sft", "preferences", "verl"):
        suffix = "parquet" if form == "verl" else "jsonl"
        with suppress(BadExport):  # a sentence: nothing of this form is left
            export_dataset(
                made, form, ExportOptions(None, None, None, 1, None), tmp_path / f"{form}.{suffix}"
            )
