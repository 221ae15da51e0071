"""How ltrain drives the agent, where it does."""

from pydantic import Field

from ltrain_instrument.allow import Allow
from ltrain_transforms.recipe.section import Section


class Rollout(Section):
    """Read only where ltrain drives the agent."""

    tasks: str
    """JSONL of tasks, beside the recipe."""
    validation: str | None = None
    """JSONL of held-out tasks."""
    agent: str
    """`module:function`, or a command."""
    reward: str
    """`module:function`: (task, result) -> a number, or numbers by name."""
    rollouts_per_task: int = Field(default=8, ge=1)
    """Rollouts of a task in a wave."""
    tasks_per_wave: int = Field(default=12, ge=1)
    """Tasks of an update."""
    timeout: float = Field(default=60, gt=0)
    """Seconds an attempt."""
    seed: int = 0
    """Decides which tasks come in which wave."""
    workers: int = Field(default=2, ge=1)
    """Warm worker processes."""
    concurrency: int = Field(default=16, ge=1)
    """Rollouts at a time in one worker."""
    agent_sees: tuple[str, ...] = ("input",)
    """Keys of a task that the agent sees, beside id and domain; the reward function sees all."""
    allow: tuple[Allow, ...] = ()
    """What an agent's calls in mode `train` may ask for although it makes them untrainable."""
