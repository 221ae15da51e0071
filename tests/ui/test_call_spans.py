"""The spans of a call as they were recorded, and their exceptions."""

from typing import Any

from tests.otlp import insert_otlp
from tests.transforms.conftest import scene, store
from tests.ui.conftest import EVIL

from ltrain_collector.store import Store
from ltrain_ui.call_spans import Fault, read_call_spans, read_faults

__all__ = ["scene", "store"]


def test_an_exception_of_two_spans_is_read_once(store: Store, scene: Any) -> None:
    rollout = scene.attempt("t1", 0)
    raised = {
        "exception.type": "ValueError",
        "exception.message": EVIL,
        "exception.stacktrace": "Traceback: line 1",
    }
    events = (("exception", raised), ("gen_ai.choice", {"index": 0}))
    inner = rollout.emit("inner", "agent", {}, events=events)
    outer = rollout.emit("outer", "agent", {}, events=(*events, ("exception", {})))
    rollout.emit("other", "agent", {}, events=(("exception", {"exception.type": "OSError"}),))
    insert_otlp(store, scene.request())
    call = {"call_id": outer, "source_spans": [outer, inner], "trace_id": rollout.trace}
    assert [span["SpanName"] for span in read_call_spans(store, call)] == ["inner", "outer"]
    assert read_faults(store, call) == [
        Fault("ValueError", EVIL, "Traceback: line 1"),
        Fault("", "", ""),
    ]
    assert read_faults(store, {**call, "trace_id": "ff" * 16}) == []
    assert read_call_spans(store, {**call, "source_spans": None})[0]["SpanName"] == "outer"
