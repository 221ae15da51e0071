"""`[deploy]`: how a new version reaches the users, and when it is taken back."""

from typing import Literal

from pydantic import Field

from ltrain_transforms.recipe.section import Section


class Gates(Section):
    """The examinations that a new version passes before it answers the first users."""

    eval: float | None = Field(default=None, ge=0)
    """By how much it may be worse than the current version on the held-out tasks of [rollout]: the
    paired difference is above it with 95 % confidence. Unset: there is no gate."""
    replay: float | None = Field(default=None, ge=0)
    """By how much it may be worse by the judges of the recipe (0 to 1) when both versions answer
    stored prompts of production again, with the same confidence. Unset: there is no gate."""
    replay_prompts: int = Field(default=100, ge=2)
    """The newest prompts of production that `replay` takes, one of each trace."""
    safety: dict[str, float] = Field(default={})
    """By how much other metrics of the rollouts of these gates may be worse, with the same
    confidence: `failed calls`, `seconds of a call`, `output tokens of a call` (of these less is
    better), and evaluations by name."""


class Deploy(Section):
    """How a new version reaches the users, by `ltrain run` and `ltrain deploy decide`."""

    share: float = Field(default=0.0, ge=0, lt=1)
    """The share of the conversations of production that a version of `ltrain run --once` or
    `--watch` answers first, as a canary; 0: it becomes current at once."""
    shadow: int = Field(default=0, ge=0)
    """Conversations of its share that the candidate answers in the shadow first: nobody sees its
    answers, and it is taken back if its calls are worse than `guards` allow. 0: none."""
    gates: Gates = Gates()
    goal: str = Field(default="reward", min_length=1)
    """The metric that decides: the name of an evaluation, such as feedback, or one of the metrics
    of `guards`."""
    min_gain: float = Field(default=0.0, ge=0)
    """The gain of the goal that a promotion needs, at least."""
    max_loss: float = Field(default=0.0, ge=0)
    """The loss of the goal at which the candidate is taken back."""
    guards: dict[str, float] = Field(default={"units with feedback": 0.1, "failed calls": 0.05})
    """By how much other metrics may be worse: `failed calls`, `seconds of a call`, `output tokens
    of a call` (of these less is better), `units with feedback` and evaluations."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """The probability of a wrong promotion, and that of a wrong end."""
    budget: int = Field(default=10_000, ge=1)
    """Conversations that the candidate may answer, at most; then it is taken back."""
    approve: Literal["automatic", "manual"] = "automatic"
    """manual: a promotion is only recommended, for `ltrain deploy promote`."""
    watch_after: float = Field(default=3600.0, ge=0)
    """Seconds from a promotion on in which the version before it keeps answering `holdback` of the
    conversations, and comes back if the new one is worse; 0: a promotion is final."""
    holdback: float = Field(default=0.1, gt=0, lt=1)
    """The share of the conversations that the version before answers in `watch_after`."""
    notify: str | None = Field(default=None, min_length=1)
    """A URL or a command that gets each decision as JSON: by POST, or at its standard input."""
    reward_window: float = Field(default=300.0, ge=0)
    """Seconds from the last call of a trace on in which its feedback may arrive; until then the
    trace is not compared."""
    poll: float = Field(default=60.0, gt=0)
    """Seconds between two looks of `ltrain deploy decide --watch`; `ltrain run --watch` looks every
    `watch.poll`."""
