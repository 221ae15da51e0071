"""Which policy is trained, and on whose calls."""

from pydantic import Field

from ltrain_transforms.recipe.section import Section


class Policy(Section):
    name: str
    """The trained policy."""
    agents: tuple[str, ...] = ()
    """Agents or nodes whose calls are trained; empty: every call of the policy."""
    sampling: dict[str, float] = Field(default={"temperature": 1.0})
    """What the gateway imposes in mode `train`."""
