"""One wave of a run for one of its policies, as the events tell of it."""

from typing import Self

from ltrain_transforms.run_events import Evaluated, Evaluation, PolicyScore, Trained, Training

TIMES = ("phases", "seconds")
"""The fields that both a wave's evaluation and its training have."""


class Wave(Training, PolicyScore, Evaluation):
    """The results of a wave of rollouts for a policy, and of the update on it if there was one."""

    policy: str
    published: int | None = None
    """The version that was trained on the wave; None if there was none."""

    @classmethod
    def of(
        cls,
        policy: str,
        evaluated: Evaluated,
        trained: Trained | None = None,
        published: int | None = None,
    ) -> Self:
        """Return the wave of these events; a wave that is only evaluated has no training.

        The times of the rollouts are those of the run's first policy.
        """
        fields = evaluated.model_dump(exclude={"event", "policies"})
        fields |= evaluated.policies[policy].model_dump() | {"policy": policy}
        if policy != next(iter(evaluated.policies)):
            fields |= {"seconds": {}, "phases": ()}
        if trained is not None:
            fields |= trained.model_dump(exclude={"event", "wave", "changed", *TIMES})
            fields["seconds"] |= trained.seconds
            fields["phases"] += trained.phases
        return cls(**fields, published=published)

    @property
    def scores(self) -> dict[str, float]:
        """The means of the evaluations and the rules, by name."""
        return self.evaluations | self.rules
