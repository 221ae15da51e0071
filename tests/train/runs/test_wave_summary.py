"""The summary of a wave, from a real store."""

from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_instrument.identity import Identity
from ltrain_train.runs.wave_summary import WaveSummary, summarize_groups
from ltrain_train.workers import Outcome, RolloutResult, WaveResult


def test_a_rollout_counts_with_its_last_attempt(tmp_path: Path) -> None:
    request = ExportTraceServiceRequest()
    _close(request, "r1", attempt=0, outcome="infra", reward=1.0)
    _close(request, "r1", attempt=1, outcome="error")
    _close(request, "r2", attempt=0, outcome="ok", reward=0.5)
    _close(request, "r3", attempt=0, outcome="ok", reward=0.5, task="t2")
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, request.SerializeToString())
        summary = summarize_groups(store, "demo", "train", [(1, "t1"), (0, "t2")])
    assert summary.outcomes == {"error": 1, "ok": 1}
    assert summary.evaluations == {"reward": 0.25}
    assert [(each.rollout, each.attempt) for each in summary.failures] == [("r1", 1)]


def test_the_results_of_a_runner_have_the_same_summary() -> None:
    def result(task: str, outcome: Outcome, **rewards: float) -> RolloutResult:
        identity = Identity(run="demo", task=task, rollout=task, attempt=0)
        return RolloutResult(
            identity=identity,
            outcome=outcome,
            reason="why" if outcome is not Outcome.OK else "",
            rewards=rewards,
            seconds=1.0,
            llm_calls=1,
        )

    summary = WaveSummary.from_results(
        WaveResult(
            [
                result("a", Outcome.OK, reward=0.5),
                result("b", Outcome.ERROR),
                result("c", Outcome.INFRA),
            ]
        )
    )
    assert summary.outcomes == {"ok": 1, "error": 1, "infra": 1}
    assert [each.task for each in summary.counted] == ["a", "b"]
    assert summary.evaluations == {"reward": 0.25}
    assert [(each.task, each.outcome) for each in summary.failures] == [
        ("b", "error"),
        ("c", "infra"),
    ]


def _close(
    request: ExportTraceServiceRequest,
    rollout: str,
    *,
    attempt: int,
    outcome: str,
    reward: float | None = None,
    task: str = "t1",
) -> None:
    """Add the closing span of an attempt, and its evaluation if it was judged."""
    scoped = request.resource_spans.add().scope_spans.add()
    scoped.scope.name = "ltrain.runner"
    identity = {"ltrain.run.id": "demo", "ltrain.mode": "train", "ltrain.rollout.id": rollout}
    identity["ltrain.task.id"] = task
    spans = [("ltrain.rollout", {"ltrain.rollout.outcome": outcome})]
    if reward is not None:
        value = {"gen_ai.evaluation.score.value": str(reward)}
        spans.append(("gen_ai.evaluation.result", value))
    for name, attributes in spans:
        span = scoped.spans.add(name=name, start_time_unix_nano=1_790_000_000_000_000_000 + attempt)
        span.end_time_unix_nano = span.start_time_unix_nano + 1
        span.trace_id = rollout.encode().ljust(16, b"t")
        span.span_id = f"{name[-6:]}{attempt}".encode().ljust(8, b"s")[:8]
        for key, text in {**identity, **attributes}.items():
            span.attributes.add(key=key).value.string_value = text
        for key, number in (("ltrain.wave", 1), ("ltrain.attempt.id", attempt)):
            span.attributes.add(key=key).value.int_value = number
