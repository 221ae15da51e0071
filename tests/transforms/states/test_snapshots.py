"""Properties of states as frames."""

import json
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.property_examples import examples
from tests.transforms.states.conftest import MS, TraceBuilder, assistant, result, system, user

from ltrain_transforms.states.from_calls import states
from ltrain_transforms.states.snapshots import digest, snapshot
from ltrain_transforms.tables import CALLS

WORD = st.sampled_from(["singer", "SELECT name FROM singer", "no such table: singers", "42", ""])
STEP = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["node", "llm", "tool", "retrieval", "agent", "asking"]),
        "name": st.sampled_from(["write", "search"]),
        "text": WORD,
        "other": WORD,
        "lasts": st.integers(0, 30),
        "pause": st.integers(-10, 10),
    }
)
EXECUTION = st.lists(STEP, min_size=1, max_size=8)


def play(execution: str, steps: list[dict[str, Any]]) -> pl.DataFrame:
    """Lay out calls one after the other, or over each other where the pause is negative."""
    trace, history = TraceBuilder(execution), [system("You look things up."), user("Who sings?")]
    for number, step in enumerate(steps):
        kind, name, text = step["kind"], step["name"], step["text"]
        begin = max(0, trace.clock + step["pause"] * MS)
        times: dict[str, Any] = {"start": begin, "end": begin + step["lasts"] * MS}
        if kind == "node":
            trace.node(name, {"query": text, "result": step["other"]}, **times)
        elif kind == "llm":
            trace.llm(history, assistant(text), **times)
            history = [*history, assistant(text), user(step["other"])]
        elif kind == "asking":
            request_message = assistant(
                "", {"id": f"c{number}", "name": name, "arguments": {"q": text}}
            )
            trace.llm(history, request_message, **times)
            history = [*history, request_message, result(f"c{number}", step["other"])]
        elif kind == "agent":
            trace.call("agent", name, agent=name, input=text, output=step["other"], **times)
        elif kind == "tool":
            trace.tool(name, {"q": text}, step["other"], **times)
        else:
            trace.call("retrieval", name, input=text, output=json.dumps([text]), **times)
    return trace.calls


def fold(rows: pl.DataFrame) -> dict[str, str]:
    """Write one after the other."""
    held = {}
    for variable, value in rows.select("variable", "value").iter_rows():
        held[variable] = value
    return held


@settings(max_examples=examples(60))
@given(steps=EXECUTION)
def test_the_last_snapshot_is_the_fold_of_all_writes(steps: list[dict[str, Any]]) -> None:
    written, _, _ = states(play("e", steps))
    last = snapshot(written, len(steps))
    assert dict(last.select("variable", "value").iter_rows()) == fold(written)
    assert written["t"].is_sorted()
    for t in range(len(steps) + 1):
        before = fold(written.filter(pl.col("t") <= t))
        assert dict(snapshot(written, t).select("variable", "value").iter_rows()) == before


@settings(max_examples=examples(60))
@given(steps=EXECUTION)
def test_a_write_is_seen_after_its_writer_has_begun(steps: list[dict[str, Any]]) -> None:
    calls = play("e", steps)
    began = dict(calls.select("call_id", "seq").iter_rows())
    written, _, _ = states(calls)
    named = written.filter(pl.col("written_by").is_not_null())
    assert all(t > began[by] for t, by in named.select("t", "written_by").iter_rows())


@settings(max_examples=examples(60))
@given(steps=EXECUTION, variables=st.sets(st.sampled_from(["query", "input", "answer"])))
def test_a_digest_depends_on_nothing_but_the_chosen_variables(
    steps: list[dict[str, Any]], variables: set[str]
) -> None:
    calls = play("e", steps)
    written, _, _ = states(calls)
    selected = written.filter(pl.col("variable").is_in(variables))
    digests = digest(written, calls, variables)
    assert_frame_equal(digest(selected, calls, variables), digests)
    renamed = calls.with_columns(pl.col("execution_id", "call_id").add("x"), name=pl.lit("x"))
    alike = selected.with_columns(pl.col("execution_id").add("x"), written_by=pl.lit(None))
    assert digest(alike, renamed, variables)["state_digest"].to_list() == (
        digests["state_digest"].to_list()
    )
    for call, seq in calls.select("call_id", "seq").iter_rows():
        (own,) = digests.filter(pl.col("call_id") == call)["state_digest"]
        assert (own is None) == snapshot(selected, seq).is_empty()


@settings(max_examples=examples(60))
@given(steps=EXECUTION)
def test_all_of_a_graphs_variables_give_the_states_own_digest(steps: list[dict[str, Any]]) -> None:
    calls = play("e", steps)
    written, observations, _ = states(calls)
    own = observations.select("call_id", "state_digest")
    if calls.filter(pl.col("kind") == "node").is_empty():
        return
    digests = digest(written, calls, ["query", "result"]).join(own, "call_id")
    assert digests["state_digest"].to_list() == digests["state_digest_right"].to_list()


@settings(max_examples=examples(40))
@given(
    executions=st.lists(EXECUTION, min_size=1, max_size=4),
    cut=st.integers(0, 4),
    backwards=st.booleans(),
)
def test_batches_cut_anywhere_give_the_same_rows(
    executions: list[list[dict[str, Any]]], cut: int, backwards: bool
) -> None:
    frames = [play(f"e{n}", steps) for n, steps in enumerate(executions)]
    whole = states(pl.concat(frames))
    batches = [frames[:cut], frames[cut:]]
    if backwards:
        batches = [batch[::-1] for batch in batches[::-1]]
    parts = [states(pl.concat([CALLS.empty(), *batch])) for batch in batches]
    for one, key in ((0, "execution_id"), (1, "call_id")):
        together = pl.concat([part[one] for part in parts])
        assert_frame_equal(
            together.sort(key, maintain_order=True), whole[one].sort(key, maintain_order=True)
        )


def test_no_calls_give_no_states() -> None:
    written, observations, _ = states(CALLS.empty())
    assert (written.height, observations.height) == (0, 0)
    assert digest(written, CALLS.empty(), ["query"]).is_empty()
