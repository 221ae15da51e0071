"""One wave of a run, as its events tell of it."""

from typing import Self

from ltrain_train.loop.journal.events import Evaluated, Evaluation, Trained, Training


class Wave(Training, Evaluation):
    """The results of a wave of rollouts, and of the update on it if there was one."""

    published: int | None = None
    """The version that was trained on the wave; None if there was none."""

    @classmethod
    def of(
        cls, evaluated: Evaluated, trained: Trained | None = None, published: int | None = None
    ) -> Self:
        """Return the wave of these events; a wave that is only evaluated has no training."""
        fields = evaluated.model_dump(exclude={"event"})
        if trained is not None:
            fields |= trained.model_dump(exclude={"event", "wave", "changed", "seconds"})
            fields["seconds"] = evaluated.seconds | trained.seconds
        return cls(**fields, published=published)

    @property
    def scores(self) -> dict[str, float]:
        """The means of the evaluations and the rules, by name."""
        return self.evaluations | self.rules
