from __future__ import annotations

import asyncio
import itertools
import math
import os
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Tracer

import ltrain_instrument as ltrain
from ltrain_instrument.errors import BadReward, BadSetting, UnknownName
from ltrain_instrument.identity import Identity, rollout_id
from ltrain_instrument.lifecycle import Capture, SpanCounter, capture
from ltrain_instrument.lifecycle.span_counter import MAX_ATTEMPTS, MAX_OPEN_SPANS
from ltrain_instrument.rollouts import _warn_of_reward_without_target

FIRST = Identity(
    run="sql", task="t1", domain="db", wave=2, sample=3, rollout="abc", attempt=1, mode="train"
)
IDENTITY_ATTRIBUTES = {
    "ltrain.run.id": "sql",
    "ltrain.task.id": "t1",
    "ltrain.domain": "db",
    "ltrain.wave": 2,
    "ltrain.sample.index": 3,
    "ltrain.rollout.id": "abc",
    "ltrain.attempt.id": 1,
    "ltrain.mode": "train",
}


class CountingIds(IdGenerator):
    """Generates ids 1, 2, 3 …, so that complete spans can be compared."""

    def __init__(self) -> None:
        self._spans = itertools.count(1)
        self._traces = itertools.count(1)

    def generate_span_id(self) -> int:
        return next(self._spans)

    def generate_trace_id(self) -> int:
        return next(self._traces)


@dataclass(frozen=True)
class Recorder:
    """A real SDK with counted ids and a clock that advances by one per reading."""

    capture: Capture
    memory: InMemorySpanExporter

    @property
    def tracer(self) -> Tracer:
        return self.capture.provider.get_tracer("agent")

    def spans(self) -> list[dict[str, Any]]:
        return [
            {
                "name": span.name,
                "scope": span.instrumentation_scope.name if span.instrumentation_scope else None,
                "trace": span.context.trace_id if span.context else None,
                "id": span.context.span_id if span.context else None,
                "parent": span.parent.span_id if span.parent else None,
                "time": (span.start_time, span.end_time),
                "status": span.status.status_code.name,
                "attributes": dict(span.attributes or {}),
            }
            for span in self.memory.get_finished_spans()
        ]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    for name in [name for name in os.environ if name.startswith("LTRAIN_")]:
        monkeypatch.delenv(name)
    clock = itertools.count(1)
    monkeypatch.setattr("opentelemetry.sdk.trace.time_ns", lambda: next(clock))
    provider = TracerProvider(id_generator=CountingIds(), shutdown_on_exit=False)
    span_counter, memory = SpanCounter(Identity()), InMemorySpanExporter()
    provider.add_span_processor(span_counter)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    active = Capture(provider, span_counter)
    monkeypatch.setattr(capture, "_current", active)
    yield Recorder(active, memory)
    provider.shutdown()


def test_reward_and_count_are_spans_in_the_trace_of_the_rollout(recorder: Recorder) -> None:
    with ltrain.rollout(FIRST):
        with recorder.tracer.start_as_current_span("agent"):
            ltrain.reward(0.5, "style", scope="call", label="fair", explanation="terse")
        ltrain.reward(True)
    assert recorder.spans() == [
        {
            "name": "gen_ai.evaluation.result",
            "scope": "ltrain.instrument",
            "trace": 1,
            "id": 2,
            "parent": 1,
            "time": (2, 3),
            "status": "UNSET",
            "attributes": {
                "gen_ai.evaluation.name": "style",
                "gen_ai.evaluation.score.value": 0.5,
                "gen_ai.evaluation.score.label": "fair",
                "gen_ai.evaluation.explanation": "terse",
                "ltrain.reward.scope": "call",
                **IDENTITY_ATTRIBUTES,
            },
        },
        {
            "name": "agent",
            "scope": "agent",
            "trace": 1,
            "id": 1,
            "parent": None,
            "time": (1, 4),
            "status": "UNSET",
            "attributes": IDENTITY_ATTRIBUTES,
        },
        {
            "name": "gen_ai.evaluation.result",
            "scope": "ltrain.instrument",
            "trace": 1,
            "id": 3,
            "parent": 1,
            "time": (5, 6),
            "status": "UNSET",
            "attributes": {
                "gen_ai.evaluation.name": "reward",
                "gen_ai.evaluation.score.value": 1.0,
                "ltrain.reward.scope": "rollout",
                **IDENTITY_ATTRIBUTES,
            },
        },
        {
            "name": "ltrain.process",
            "scope": "ltrain.instrument",
            "trace": 1,
            "id": 4,
            "parent": 1,
            "time": (7, 8),
            "status": "UNSET",
            "attributes": {"ltrain.rollout.spans": 3, **IDENTITY_ATTRIBUTES},
        },
    ]


def test_counts_are_cumulative_and_late_spans_are_reported_at_the_end(recorder: Recorder) -> None:
    for _ in range(2):
        with ltrain.rollout(FIRST):
            late = recorder.tracer.start_span("late")
            recorder.tracer.start_span("s").end()
    late.end()
    recorder.capture.shutdown()
    counts = [s["attributes"] for s in recorder.spans() if s["name"] == "ltrain.process"]
    assert [c["ltrain.rollout.spans"] for c in counts] == [1, 2, 4]


def test_open_spans_are_ended_as_truncated_and_counted(recorder: Recorder) -> None:
    with ltrain.rollout(FIRST):
        recorder.tracer.start_span("open")
    recorder.capture.shutdown()
    process, truncated, last = recorder.spans()
    assert process["attributes"]["ltrain.rollout.spans"] == 0
    assert truncated["name"] == "open"
    assert truncated["status"] == "UNSET"
    assert truncated["attributes"] == {"ltrain.truncated": True, **IDENTITY_ATTRIBUTES}
    assert last["attributes"]["ltrain.rollout.spans"] == 1
    recorder.capture.shutdown()
    assert len(recorder.spans()) == 3


def _counts(recorder: Recorder) -> list[int]:
    processes = [s["attributes"] for s in recorder.spans() if s["name"] == "ltrain.process"]
    return [attributes["ltrain.rollout.spans"] for attributes in processes]


def test_a_span_after_the_shutdown_is_counted_before_it_ends(recorder: Recorder) -> None:
    with ltrain.rollout(FIRST):
        recorder.tracer.start_span("s").end()
        recorder.capture.shutdown()
        assert _counts(recorder) == [1]
        late = recorder.tracer.start_span("late")
        assert _counts(recorder) == [1, 2]
        late.end()
        recorder.tracer.start_span("never ended")
    assert _counts(recorder)[-1] == 3
    assert [s["name"] for s in recorder.spans() if s["name"] != "ltrain.process"] == ["s", "late"]


def test_a_process_that_continues_after_its_shutdown_counts_as_before(recorder: Recorder) -> None:
    with ltrain.rollout(FIRST):
        recorder.tracer.start_span("s").end()
        recorder.capture.shutdown()
        recorder.capture.cancel_shutdown()  # as after a failed exec
        still = recorder.tracer.start_span("still open")
        assert _counts(recorder) == [1]
    assert _counts(recorder) == [1, 1]
    still.end()
    recorder.capture.shutdown()
    assert _counts(recorder) == [1, 1, 2]


def test_unsampled_spans_are_not_counted() -> None:
    provider = TracerProvider(sampler=sampling.StaticSampler(sampling.Decision.RECORD_ONLY))
    memory = InMemorySpanExporter()
    span_counter = SpanCounter(FIRST)
    provider.add_span_processor(span_counter)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    provider.get_tracer("agent").start_span("seen by nobody").end()
    assert (
        span_counter._process.expected_spans(exiting=True)
        == span_counter._process.expected_spans(exiting=False)
        == 0
    )
    provider.shutdown()


def test_abandoned_spans_do_not_pile_up(recorder: Recorder) -> None:
    for number in range(MAX_OPEN_SPANS + 3):
        recorder.tracer.start_span(str(number))
    ended = recorder.spans()
    assert [span["name"] for span in ended] == ["0", "1", "2"]
    assert all(span["attributes"] == {"ltrain.truncated": True} for span in ended)


def test_rollouts_in_threads_are_separate(recorder: Recorder) -> None:
    def attempt(k: int) -> None:
        with ltrain.rollout(run="r", task="t", wave=0, sample=k):
            for _ in range(k + 1):
                recorder.tracer.start_span("work").end()

    with ThreadPoolExecutor(96) as pool:
        list(pool.map(attempt, range(96)))
    for k in range(96):
        name = rollout_id("r", "prod", 0, "t", k)
        own_spans = [s for s in recorder.spans() if s["attributes"]["ltrain.rollout.id"] == name]
        assert [s["name"] for s in own_spans] == ["work"] * (k + 1) + ["ltrain.process"]
        assert own_spans[-1]["attributes"]["ltrain.rollout.spans"] == k + 1


def test_rollouts_in_tasks_are_separate(recorder: Recorder) -> None:
    async def attempt(k: int) -> None:
        async with ltrain.rollout(rollout=f"r{k}"):
            for _ in range(3):
                with recorder.tracer.start_as_current_span("work"):
                    await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(attempt(k) for k in range(10)))

    asyncio.run(main())
    for k in range(10):
        own_spans = [s for s in recorder.spans() if s["attributes"]["ltrain.rollout.id"] == f"r{k}"]
        assert [s["name"] for s in own_spans] == ["work"] * 3 + ["ltrain.process"]


def test_two_rollouts_share_a_pool_of_threads(recorder: Recorder) -> None:
    barrier = threading.Barrier(2, timeout=20)

    def work(number: int) -> None:
        barrier.wait()  # both rollouts run in the pool
        with recorder.tracer.start_as_current_span(f"work-{number}"):
            ltrain.reward(number)

    async def attempt(name: str, pool: ThreadPoolExecutor) -> None:
        async with ltrain.rollout(rollout=name):
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(pool, work, n) for n in range(5)))
            await asyncio.wrap_future(pool.submit(work, 5))
            await asyncio.to_thread(work, 6)

    async def main() -> None:
        with ThreadPoolExecutor(2) as pool:
            await asyncio.gather(attempt("a", pool), attempt("b", pool))

    ThreadingInstrumentor().instrument()
    try:
        asyncio.run(main())
    finally:
        ThreadingInstrumentor().uninstrument()
    for name in ("a", "b"):
        own_spans = [s for s in recorder.spans() if s["attributes"]["ltrain.rollout.id"] == name]
        names = Counter(span["name"] for span in own_spans)
        assert names == {
            **{f"work-{number}": 1 for number in range(7)},
            "gen_ai.evaluation.result": 7,
            "ltrain.process": 1,
        }


def test_rollouts_nest(recorder: Recorder) -> None:
    def now() -> list[str | None]:
        recorder.tracer.start_span("now").end()
        attributes = recorder.spans()[-1]["attributes"]
        return [attributes.get("ltrain.rollout.id"), attributes.get("ltrain.run.id")]

    with ltrain.rollout(rollout="outer", run="r") as outer:
        assert now() == ["outer", "r"]
        with ltrain.rollout(rollout="inner"):
            assert now() == ["inner", None]
            assert baggage.get_baggage("ltrain.run.id") is None
            with ltrain.rollout(outer):
                assert now() == ["outer", "r"]
            assert now() == ["inner", None]
        assert now() == ["outer", "r"]
    assert now() == [None, None]


def test_rollouts_in_generators_end_in_any_order(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    def steps(name: str) -> Generator[int]:
        with ltrain.rollout(rollout=name):
            yield from range(3)

    first, second, left = steps("a"), steps("b"), steps("c")
    assert [next(first), next(second), next(left)] == [0, 0, 0]
    assert list(first) == list(second) == [1, 2]
    left.close()
    recorder.tracer.start_span("after").end()
    assert recorder.spans()[-1]["attributes"] == {}
    assert caplog.text == ""


def test_a_rollout_that_ends_in_another_task_does_not_affect_it(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        inside = ltrain.rollout(rollout="a")
        await asyncio.create_task(inside.__aenter__())

        async def other() -> None:
            async with ltrain.rollout(rollout="b"):
                await inside.__aexit__(None, None, None)
                recorder.tracer.start_span("mine").end()

        await asyncio.create_task(other())

    asyncio.run(main())
    (own_spans,) = [span for span in recorder.spans() if span["name"] == "mine"]
    assert own_spans["attributes"]["ltrain.rollout.id"] == "b"
    assert caplog.text == ""


def test_plain_opentelemetry_works_as_well(recorder: Recorder) -> None:
    uninstrumented = context.attach(baggage.set_baggage("ltrain.rollout.id", "plain"))
    with recorder.tracer.start_as_current_span("agent") as span:
        span.add_event("gen_ai.evaluation.result", {"gen_ai.evaluation.score.value": 0.5})
        span.set_attribute("gen_ai.evaluation.score.value", 0.5)
        recorder.tracer.start_span("gen_ai.evaluation.result").end()
    context.detach(uninstrumented)
    with ltrain.rollout(FIRST):
        deeper = context.attach(baggage.set_baggage("ltrain.task.id", "t2"))
        recorder.tracer.start_span("deeper").end()
        context.detach(deeper)
        alien = context.attach(baggage.set_baggage("user", "u"))
        recorder.tracer.start_span("same").end()
        context.detach(alien)
    evaluation, agent, inside, same, _ = recorder.spans()
    assert evaluation["attributes"] == {"ltrain.rollout.id": "plain"}
    assert agent["attributes"]["ltrain.rollout.id"] == "plain"
    assert inside["attributes"] == {**IDENTITY_ATTRIBUTES, "ltrain.task.id": "t2"}
    assert same["attributes"] == IDENTITY_ATTRIBUTES


def test_feedback_has_the_identity_of_its_target_only(recorder: Recorder) -> None:
    trace = "0123456789abcdef0123456789abcdef"
    with ltrain.rollout(FIRST), recorder.tracer.start_as_current_span("agent"):
        ltrain.reward(1, "thumbs", rollout="other")
        ltrain.reward(0, "thumbs", trace=trace)
        ltrain.reward(0.5, "stars", session="s1")
    feedback = recorder.spans()[:3]
    common = {"gen_ai.evaluation.name": "thumbs", "ltrain.reward.scope": "rollout"}
    assert [span["attributes"] for span in feedback] == [
        {**common, "gen_ai.evaluation.score.value": 1.0, "ltrain.rollout.id": "other"},
        {**common, "gen_ai.evaluation.score.value": 0.0},
        {
            **common,
            "gen_ai.evaluation.name": "stars",
            "gen_ai.evaluation.score.value": 0.5,
            "gen_ai.conversation.id": "s1",
            "ltrain.run.id": "sql",
        },
    ]
    of_rollout, of_trace, of_session = (span["trace"] for span in feedback)
    assert of_trace == int(trace, 16)
    assert 1 not in (of_rollout, of_session)  # not in the trace of the process's own rollout
    recorder.capture.shutdown()
    reports = [span for span in recorder.spans() if span["name"] == "ltrain.process"]
    assert {span["attributes"]["ltrain.rollout.id"] for span in reports} == {"abc"}


def test_a_reward_without_target_is_recorded_with_one_warning(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_reward_without_target.cache_clear()
    with recorder.tracer.start_as_current_span("production"):
        ltrain.reward(1.0)
    assert caplog.text == ""
    ltrain.reward(0.25)
    ltrain.reward(0.5)
    assert caplog.text.count("applies to nothing") == 1
    values = [s["attributes"].get("gen_ai.evaluation.score.value") for s in recorder.spans()]
    assert values == [1.0, None, 0.25, 0.5]


def test_a_child_span_belongs_to_its_parents_rollout_without_context(
    recorder: Recorder,
) -> None:
    from opentelemetry import trace
    from opentelemetry.context import Context

    with ltrain.rollout(FIRST):
        parent = recorder.tracer.start_span("parent")
    lost = trace.set_span_in_context(parent, Context())
    recorder.tracer.start_span("child", lost).end()
    assert recorder.spans()[-1]["attributes"] == IDENTITY_ATTRIBUTES


def test_counts_of_reported_attempts_are_removed_eventually(recorder: Recorder) -> None:
    for k in range(MAX_ATTEMPTS + 50):
        with ltrain.rollout(rollout=f"r{k}"):
            pass
    assert len(recorder.capture.span_counter._counts) == MAX_ATTEMPTS


def test_a_service_reports_the_attempts_that_it_removes(
    recorder: Recorder,
) -> None:
    for number in range(MAX_ATTEMPTS + 10):
        with_rollout = baggage.set_baggage("ltrain.rollout.id", f"r{number}")
        recorder.tracer.start_span("served", with_rollout).end()
    reported = [s["attributes"] for s in recorder.spans() if s["name"] == "ltrain.process"]
    assert [each["ltrain.rollout.id"] for each in reported] == [
        f"r{number}" for number in range(10)
    ]
    assert {each["ltrain.rollout.spans"] for each in reported} == {1}
    recorder.capture.shutdown()
    assert sum(s["name"] == "ltrain.process" for s in recorder.spans()) == MAX_ATTEMPTS + 10


def test_identity_is_derived_inherited_or_new(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ltrain.rollout(FIRST, attempt=2) as retried:
        assert retried.rollout == "abc"
        assert retried.attempt == 2
        with ltrain.rollout() as same:
            assert same == retried
    with ltrain.rollout(run="r", mode="val", wave=1, task="t", sample=0) as derived:
        assert derived.rollout == rollout_id("r", "val", 1, "t", 0)
    with ltrain.rollout(task="t") as fresh:
        assert (fresh.mode, fresh.attempt) == ("prod", 0)
        assert fresh.rollout is not None
        assert len(fresh.rollout) == 32
    for name, value in FIRST.environ().items():
        monkeypatch.setenv(name, value)
    with ltrain.rollout() as inherited:
        assert inherited == FIRST
    assert Identity.from_environ() == FIRST
    assert Identity.from_attributes(FIRST.attributes()) == FIRST


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 1e308, 10**400, "much", "0.5", b"1", None, 1j, [1.0]]
)
def test_a_reward_that_is_not_a_number_is_refused(recorder: Recorder, value: object) -> None:
    with pytest.raises(BadReward, match="The reward"), ltrain.rollout(FIRST):
        ltrain.reward(value)  # type: ignore[arg-type]
    assert issubclass(BadReward, ValueError)
    assert [span["name"] for span in recorder.spans()] == ["ltrain.process"]


def test_errors_suggest_valid_names(recorder: Recorder) -> None:
    with pytest.raises(UnknownName, match=r"Choose from: call, rollout.*Did you mean 'rollout'"):
        ltrain.reward(1, scope="rolout")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="Did you mean 'sample'"):
        ltrain.rollout(sampel=1)


def test_task_is_the_json_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LTRAIN_TASK", raising=False)
    assert ltrain.task() is None
    monkeypatch.setenv("LTRAIN_TASK", '{"id": "7", "input": "x"}')
    assert ltrain.task() == {"id": "7", "input": "x"}
    for bad in ("{", "[1]"):
        monkeypatch.setenv("LTRAIN_TASK", bad)
        with pytest.raises(BadSetting, match="LTRAIN_TASK"):
            ltrain.task()


def test_without_instrumentation_the_functions_do_nothing() -> None:
    assert "OTEL_PYTHON_DISTRO" not in os.environ
    with ltrain.rollout(task="t") as identity:
        ltrain.reward(1.0)
    assert identity.task == "t"
    assert ltrain.flush() is True
