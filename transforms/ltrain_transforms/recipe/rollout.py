"""How ltrain runs the agent on tasks."""

from pydantic import Field

from ltrain_instrument.allow import Allow
from ltrain_transforms.recipe.section import Section


class Rollout(Section):
    """Read only where ltrain runs the agent."""

    tasks: str
    """JSONL file of tasks; a relative path starts at the recipe's folder."""
    validation: str | None = None
    """JSONL file of held-out tasks."""
    agent: str
    """`module:function`, or a command."""
    reward: str
    """`module:function`, a command or a URL: it gets a task and a result, and returns a number, or
    numbers by name."""
    rollouts_per_task: int = Field(default=8, ge=1)
    """Rollouts of each task in a wave."""
    tasks_per_wave: int = Field(default=12, ge=1)
    """Tasks in a wave; one wave is one update."""
    timeout: float = Field(default=60, gt=0)
    """Seconds for each attempt in which the agent can work; waits for the gateway do not count."""
    reward_timeout: float = Field(default=60, gt=0)
    """Seconds for the reward of one result."""
    seed: int = 0
    """Random seed of the order of tasks."""
    workers: int = Field(default=2, ge=1)
    """Worker processes."""
    concurrency: int = Field(default=16, ge=1)
    """Concurrent rollouts in one worker."""
    agent_sees: tuple[str, ...] = ("input",)
    """Keys of a task that the agent gets, with `id` and `domain`; the reward function gets all."""
    allow: tuple[Allow, ...] = ()
    """Request features that calls in mode `train` may use although it makes them untrainable."""
