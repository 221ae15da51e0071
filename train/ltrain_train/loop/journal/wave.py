"""One wave of a run, as its events tell of it."""

from dataclasses import dataclass, field

from ltrain_train.loop.journal.events import Evaluated, Trained


@dataclass(slots=True, kw_only=True)
class Wave:
    """One wave of rollouts and its results."""

    mode: str
    wave: int
    version: int
    """The policy version that was served when the wave was dispatched."""
    rollouts: int
    outcomes: dict[str, int]
    evaluations: dict[str, float]
    """Mean of each evaluation over the rollouts."""
    score: float | None = None
    """The evaluations that the recipe rewards, by their weights; None without any."""
    tasks: dict[str, float] = field(default_factory=dict)
    """The score of each task, the mean over its rollouts."""
    rules: dict[str, float] = field(default_factory=dict)
    """Mean of each rule's rewards over the rollouts."""
    dataset: str | None = None
    """Id of the dataset that was built from the wave."""
    published: int | None = None
    """The version that was trained on the wave; None if there was none."""
    samples: int = 0
    """Rows that the published version was trained on."""
    tokens: int = 0
    """Tokens of these rows."""
    drops: dict[str, int] = field(default_factory=dict)
    failures: str = ""
    """Why rollouts failed: the commonest reason, an example and its log; '' if none failed."""
    alarms: list[str] = field(default_factory=list)
    """One sentence for each kind of drop that correlates with low reward, and for each warning of
    the learner."""
    undone: int = 0
    """Optimizer steps that were undone because a number was not finite."""
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds by phase."""

    @classmethod
    def of(
        cls, evaluated: Evaluated, trained: Trained | None = None, published: int | None = None
    ) -> "Wave":
        """Return the wave of these events; a wave that is only evaluated has no training."""
        fields = evaluated.model_dump(exclude={"event"})
        if trained is not None:
            fields |= trained.model_dump(exclude={"event", "wave", "changed", "seconds"})
            fields["alarms"] = list(trained.alarms)
            fields["seconds"] = evaluated.seconds | trained.seconds
        return cls(**fields, published=published)

    @property
    def scores(self) -> dict[str, float]:
        """The means of the evaluations and the rules, by name."""
        return self.evaluations | self.rules
