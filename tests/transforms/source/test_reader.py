"""Selection of spans by run, mode, wave and task, whoever names them."""

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from polars.testing import assert_frame_equal
from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.datasets import build
from ltrain_transforms.errors import NothingToBuild
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.source import Selection, read_spans

PLACE = (
    attributes.TASK_ID,
    attributes.DOMAIN,
    attributes.MODE,
    attributes.WAVE,
    attributes.SAMPLE_INDEX,
)


def to_resource(body: bytes) -> bytes:
    """Move task, domain, mode, wave and sample index of each span to its resource."""
    request = ExportTraceServiceRequest.FromString(body)
    for each in request.resource_spans:
        (span,) = each.scope_spans[0].spans
        moved = [one for one in span.attributes if one.key in PLACE]
        remaining = [one for one in span.attributes if one.key not in PLACE]
        del span.attributes[:]
        span.attributes.extend(remaining)
        each.resource.attributes.extend(moved)
    return bytes(request.SerializeToString())


@pytest.fixture
def request_body(scene: Any) -> bytes:
    for task in ("t1", "t2"):
        for sample in range(2):
            rollout = scene.attempt(task, sample, wave=3)
            rollout.dispatch()
            rollout.llm("write", (1, 2, 3), (4, sample))
            rollout.evaluate(float(sample == 0))
            rollout.close()
    return bytes(scene.request())


def test_a_resource_that_names_task_mode_and_wave_is_selected_like_a_span(
    store: Store, request_body: bytes, recipe: Recipe, tmp_path: Path
) -> None:
    insert_otlp(store, request_body)
    expected = build(store, recipe, tmp_path / "spans", wave=3)
    store.command("TRUNCATE TABLE otel.otel_traces")
    insert_otlp(store, to_resource(request_body))
    rollouts = store.query("SELECT mode, wave, task, sample FROM otel.rollouts ORDER BY ALL")
    assert rollouts.rows() == [("train", 3, f"t{task}", k) for task in (1, 2) for k in (0, 1)]
    result = build(store, recipe, tmp_path / "resource", mode="train", wave=3)
    for table in ("executions", "samples", "transitions", "rewards"):
        assert_frame_equal(result.table(table), expected.table(table))
    with pytest.raises(NothingToBuild, match="mode val"):
        build(store, recipe, tmp_path / "val", mode="val")


def test_a_task_that_only_the_resource_names_is_selected(
    store: Store, request_body: bytes, recipe: Recipe
) -> None:
    insert_otlp(store, to_resource(request_body))
    selection = Selection(run="demo", mode="train", wave=3, task="t1")
    spans, _ = read_spans(store, recipe.source, selection)
    identity = spans.select("task_id", "domain", "mode", "wave", "sample_index").unique()
    assert sorted(identity.rows()) == [("t1", "db", "train", 3, k) for k in (0, 1)]


def test_groups_of_several_waves_are_selected_together(
    store: Store, scene: Any, recipe: Recipe, tmp_path: Path
) -> None:
    for wave, task in ((0, "t1"), (0, "t2"), (1, "t1"), (1, "t2")):
        for sample in range(2):
            rollout = scene.attempt(task, sample, wave=wave)
            rollout.dispatch()
            rollout.llm("write", (1, 2, 3), (4, sample))
            rollout.evaluate(float(sample == 0))
            rollout.close()
    insert_otlp(store, scene.request())
    dataset = build(store, recipe, tmp_path / "d", groups=["0/t2", "1/t1", "2/t1"])
    built = dataset.table("executions").select("wave", "task_id").unique().sort("wave")
    assert built.rows() == [(0, "t2"), (1, "t1")]
    assert dataset.counts["samples"] == 4
    assert dataset.manifest["parameters"]["groups"] == ["0/t2", "1/t1", "2/t1"]
    with pytest.raises(NothingToBuild, match="groups 0"):
        build(store, recipe, tmp_path / "none", groups=["0/t3"])


def test_a_span_that_names_no_wave_has_none(store: Store, scene: Any, recipe: Recipe) -> None:
    scene.attempt().emit(
        "work", "agent", {"ltrain.rollout.id": "r", "ltrain.run.id": "demo"}, named=False
    )
    insert_otlp(store, scene.request())
    spans, _ = read_spans(store, recipe.source, Selection(run="demo"))
    assert spans.select("task_id", "mode", "wave", "sample_index").rows() == [(None,) * 4]
