"""Membership of spans and log records: by own id, trace, ancestor, link, session."""

from collections.abc import Callable
from time import monotonic
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis.strategies import permutations
from tests.otlp import insert_otlp
from tests.transforms.made import logs, span, spans

from ltrain_collector.store import Store
from ltrain_transforms.calls.membership import resolve_logs, resolve_spans
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans

ReadBack = Callable[[Any], pl.DataFrame]


def unresolved(
    span_id: str, attributes: dict[str, str] | None = None, **columns: Any
) -> dict[str, Any]:
    return span(span_id, attributes, **{"execution_id": None, **columns})


def owners(*made: dict[str, Any], execution: str = "rollout") -> dict[str, str]:
    resolved, _ = resolve_spans(spans(*made), execution)
    return dict(resolved.select("span_id", "execution_id").iter_rows())


ROOT = unresolved("root", rollout_id="r1", attempt="1")


def test_a_span_without_an_id_belongs_to_its_trace() -> None:
    assert owners(ROOT, unresolved("http")) == {"root": "r1.1", "http": "r1.1"}


def test_in_a_trace_of_several_rollouts_the_nearest_ancestor_decides() -> None:
    other = unresolved("other", rollout_id="r2", attempt="1")
    resolved = owners(
        ROOT,
        other,
        unresolved("below", parent="other"),
        unresolved("deeper", parent="below"),
        unresolved("stray"),
    )
    assert resolved == {"root": "r1.1", "other": "r2.1", "below": "r2.1", "deeper": "r2.1"}


def test_parents_are_searched_in_their_own_trace() -> None:
    shared = unresolved("root", rollout_id="r2", attempt="1", trace_id="u")
    second = unresolved("second", rollout_id="r3", attempt="1", trace_id="u")
    below = unresolved("below", parent="root", trace_id="u")
    assert owners(ROOT, shared, second, below)["below"] == "r2.1"


def test_a_link_decides_for_the_span_and_its_trace() -> None:
    judged = unresolved("judge", trace_id="u", links=["nowhere", "root"])
    below = unresolved("scored", trace_id="u", parent="judge")
    beside = unresolved("beside", trace_id="u")
    assert set(owners(ROOT, judged, below, beside).values()) == {"r1.1"}


def test_a_rollout_without_an_attempt_takes_that_of_its_trace() -> None:
    """A Node process that gets the rollout as baggage sets no attempt."""
    second = unresolved("second", rollout_id="r1", attempt="2", trace_id="u")
    nodes = unresolved("tool", rollout_id="r1", trace_id="u")
    apart = unresolved("apart", rollout_id="r9", trace_id="v")
    resolved = owners(ROOT, second, nodes, apart)
    assert (resolved["tool"], resolved["apart"]) == ("r1.2", "r9.1")


def test_sessions_and_traces_are_executions_if_the_recipe_says_so() -> None:
    made = [
        unresolved("a", session_id="s", trace_id="t1"),
        unresolved("b", trace_id="t1"),
        unresolved("c", session_id="s", trace_id="t2"),
        unresolved("d", trace_id="t3"),
    ]
    assert owners(*made, execution="session") == {"a": "s", "b": "s", "c": "s", "d": "t3"}
    assert owners(*made, execution="trace") == {"a": "t1", "b": "t1", "c": "t2", "d": "t3"}
    assert owners(*made) == {}


CONVERSATIONS = (
    unresolved("script"),
    unresolved("post 1", parent="script", session_id="s1"),
    unresolved("post 2", parent="script", session_id="s2"),
    unresolved("agent 1", parent="post 1"),
    unresolved("chat 1", parent="agent 1"),
    unresolved("chat 2", parent="post 2"),
    unresolved("agent 3", parent="script"),  # names no session, its calls do
    unresolved("chat 3", parent="agent 3", session_id="s3"),
    unresolved("tool 3", parent="agent 3"),
    unresolved("judge", parent="script"),
)
OWNERS = {
    **{"post 1": "s1", "agent 1": "s1", "chat 1": "s1"},
    **{"post 2": "s2", "chat 2": "s2"},
    **{"agent 3": "s3", "chat 3": "s3", "tool 3": "s3"},
}


@given(permutations(CONVERSATIONS))
def test_conversations_in_one_trace_are_apart_in_any_order(made: list[dict[str, Any]]) -> None:
    assert owners(*made, execution="session") == OWNERS
    _, drops = resolve_spans(spans(*made), "session")
    assert drops.select("id", "reason").sort("id").rows() == [
        ("judge", "unresolved"),
        ("script", "unresolved"),
    ]


@given(permutations(range(4)))
def test_a_thread_inside_a_web_servers_session_belongs_to_the_session(order: list[int]) -> None:
    thread, web = "langsmith.metadata.thread_id", "session.id"
    made = [
        unresolved("post", {web: "s1"}, session_id="s1"),
        unresolved("graph", {thread: "g1"}, parent="post", session_id="g1"),
        unresolved("chat", {thread: "g1"}, parent="graph", session_id="g1"),
        unresolved("inner", {web: "s2"}, parent="graph", session_id="s2"),
    ]
    rows, _ = resolve_spans(spans(*(made[index] for index in order)), "session")
    assert dict(rows.select("span_id", "execution_id").iter_rows()) == {
        **{"post": "s1", "graph": "s1", "chat": "s1", "inner": "s2"}
    }
    assert rows["session_id"].to_list() == rows["execution_id"].to_list()


def test_a_chain_of_sessions_costs_time_in_proportion_to_its_length() -> None:
    count = 20_000
    made = [
        unresolved(f"s{n}", parent=f"s{n - 1}" if n else None, session_id=f"session {n}")
        for n in range(count)
    ]
    began = monotonic()
    assert len(set(owners(*made, execution="session").values())) == count
    assert monotonic() - began < 60


def test_a_cycle_of_parents_has_the_sessions_that_its_spans_name() -> None:
    made = [
        unresolved("a", parent="b", session_id="s1"),
        unresolved("b", parent="a"),
        unresolved("c", session_id="s2"),
    ]
    assert owners(*made, execution="session") == {"a": "s1", "b": "s1", "c": "s2"}


def test_unresolved_and_duplicate_spans_are_drops() -> None:
    apart = unresolved("apart", trace_id="u")
    resolved, drops = resolve_spans(spans(ROOT, ROOT, apart), "rollout")
    assert resolved["span_id"].to_list() == ["root"]
    assert drops.select("stage", "id", "reason").rows() == [
        ("spans", "apart", "unresolved"),
        ("spans", "root", "duplicate_span"),
    ]


def test_log_records_belong_to_their_rollout() -> None:
    known = spans(
        span("a", execution_id="r1.1", trace_id="t"),
        span("b", execution_id="r2.1", trace_id="u"),
        span("c", execution_id="r3.1", trace_id="u"),
        span("d", execution_id="r9.2", trace_id="v"),
    )
    made = logs(
        {"name": "own", "time": 1, "rollout_id": "r9", "attempt": "2", "trace_id": "t"},
        {"name": "of its span", "time": 2, "trace_id": "u", "span_id": "c"},
        {"name": "of its trace", "time": 3, "trace_id": "t", "span_id": "gone"},
        {"name": "of no one", "time": 4, "trace_id": "u", "span_id": "gone"},
        {"name": "of nothing", "time": 5},
        {"name": "of an attempt without spans", "time": 6, "rollout_id": "r9", "span_id": "e"},
    )
    resolved, drops = resolve_logs(made, known)
    assert resolved.select("name", "execution_id").rows() == [
        ("own", "r9.2"),
        ("of its span", "r3.1"),
        ("of its trace", "r1.1"),
    ]
    assert drops["id"].to_list() == ["gone", "", "e"]
    assert set(drops["reason"]) == {"unresolved"}


def test_spans_without_rollout_and_linked_rewards_are_read_from_the_store(
    store: Store, scene: Any
) -> None:
    """vLLM below the gateway, an MCP server in Node, an evaluator with its own trace."""
    rollout = scene.attempt(attempt=2)
    rollout.llm()
    gateway = rollout.spans[0].span
    nameless = {"named": False, "start": rollout.clock, "end": rollout.clock + 1}
    engine = {"gen_ai.request.id": "chatcmpl-1", "gen_ai.usage.prompt_tokens": 3}
    rollout.emit(
        "llm_request", "vllm.llm_engine", engine, process="vllm", parent=gateway, **nameless
    )
    called = {"mcp.method.name": "tools/call", "gen_ai.tool.name": "look"}
    rollout.emit("tools/call look", "@mcp/server", called, process="node", **nameless)
    own = {**nameless, "trace": f"{7:032x}", "process": "evaluator"}
    job = rollout.emit("job", "evaluator", {}, links=[(rollout.trace, gateway)], **own)
    rollout.emit("POST", "httpx", {}, parent=job, **own)
    scene.attempt("other").llm()
    insert_otlp(store, scene.request())
    for selection in (Selection(run="demo", task="t1"), Selection(rollouts=(rollout.rollout,))):
        resolved, drops = read_spans(store, Source(), selection)
        assert drops.is_empty()
        assert set(resolved["execution_id"]) == {rollout.execution}
        names = ("llm_request", "tools/call look", "job", "POST")
        assert set(names) < set(resolved["name"])
