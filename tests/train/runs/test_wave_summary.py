"""The summary of a wave."""

from tests.train.runs.ends import ended

from ltrain_train.runs.wave_summary import WaveSummary


def test_a_rollout_that_an_outage_ended_does_not_count() -> None:
    rollouts = [ended("a", "ok", reward=0.5), ended("b", "error"), ended("c", "infra")]
    summary = WaveSummary(rollouts)
    assert summary.outcomes == {"ok": 1, "error": 1, "infra": 1}
    assert [each.task for each in summary.counted] == ["a", "b"]
    assert summary.evaluations == {"reward": 0.25}
    assert [(each.task, each.outcome) for each in summary.failures] == [
        ("b", "error"),
        ("c", "infra"),
    ]
