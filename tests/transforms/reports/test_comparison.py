"""Scores of two versions where people judge."""

from tests.otlp import insert_otlp
from tests.transforms.conftest import Scene

from ltrain_collector.feedback import Feedback, save_feedback
from ltrain_collector.store import Store
from ltrain_transforms.reports.comparison import read_scores
from ltrain_transforms.traces import sender_roles


def test_the_runner_comes_first_and_a_withdrawn_score_does_not_count(
    store: Store, scene: Scene
) -> None:
    rollouts = []
    for version in (0, 1):
        rollout = scene.attempt("t1", version, wave=version)
        rollout.llm(gateway={"ltrain.policy.version": version})
        if version == 1:
            rollout.evaluate(0.5)
        rollout.close()
        rollouts.append(rollout.rollout)
    insert_otlp(store, scene.request())

    def judge(**content: object) -> None:
        for rollout in rollouts:
            fields = {"rollout": rollout, "name": "reward", **content}
            save_feedback(store, Feedback.model_validate(fields), "alice")

    def scores() -> list[tuple[int, float]]:
        rows = read_scores(store, "sql@0", "sql@1", "train", "reward", sender_roles.TRUSTED)
        return sorted(rows.select("version", "score").rows())

    judge(value=1.0)
    before = scores()
    judge(withdrawn=True)
    assert [score for _, score in before] == [1.0, 0.5]
    assert [score for _, score in scores()] == [0.0, 0.5]
    judge(value=0.25)
    assert [score for _, score in scores()] == [0.25, 0.5]
