"""What is worth something: evaluations by name, and rules over calls."""

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, model_validator

from ltrain_transforms import sql
from ltrain_transforms.errors import BadRule
from ltrain_transforms.recipe.section import Section


class Credited(StrEnum):
    SELF = "self"
    """The call that the rule looked at."""
    REQUESTER = "requester"
    """The LLM call that asked for the tool."""
    PREVIOUS = "previous"
    """The trained call before it."""
    LAST = "last"
    """The last trained call of the execution."""
    ROLLOUT = "rollout"
    """The whole execution."""


class Reward(Section):
    """Either an evaluation by name, or a rule over calls."""

    name: str
    """Its name in tables and reports."""
    evaluation: str | None = None
    """Name of an evaluation; its value is taken."""
    from_: Literal["runner", "agent", "any"] = Field(default="runner", alias="from")
    """Whose word counts."""
    on: Literal["llm", "tool", "retrieval", "embedding", "agent", "node"] | None = None
    """The kind of call a rule looks at."""
    when: str = "true"
    """SQL predicate over the columns of `calls`."""
    value: str | None = None
    """SQL expression over the same columns; a number."""
    let: dict[str, str] = Field(default={})
    """Names for JSON inside arguments and results: `rows = "result:$.rows"`."""
    credit_to: Credited = Credited.SELF
    """Which call gets the rule's value."""
    at_least: float = float("-inf")
    """Bound of the sum over an execution, in call order."""
    at_most: float = float("inf")
    """The other bound of that sum."""
    weight: float = 1.0
    """Multiplies what it gives."""

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.evaluation is not None and (self.on or self.value):
            raise BadRule(f"Reward '{self.name}' has an evaluation and a rule; it must be one.")
        if self.evaluation is None and not (self.on and self.value):
            raise BadRule(
                f"Reward '{self.name}' must have `evaluation`, or `on` and `value` of a rule."
            )
        if self.at_least > self.at_most:
            raise BadRule(f"Reward '{self.name}': at_least {self.at_least} > {self.at_most}.")
        if self.value is not None:
            sql.check(self.name, self.when, self.value, self.let)
        return self
