"""What is worth something: evaluations by name, and rules over calls and executions."""

from enum import StrEnum
from typing import Any, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from ltrain_instrument.errors import UnknownName
from ltrain_transforms import library, python_rules, sql
from ltrain_transforms.errors import BadRule
from ltrain_transforms.recipe.section import Section
from ltrain_transforms.tables import CALLS, EXECUTIONS, GROUP_STATS, SIGNALS
from ltrain_transforms.tool_faults import schema_error

CALL_COLUMNS = pl.Schema({**CALLS.schema, **SIGNALS.schema})
"""What the SQL of a rule over calls may name."""

EXECUTION_COLUMNS = pl.Schema({**EXECUTIONS.schema, **GROUP_STATS.schema})
"""What a gate, and the SQL of a rule over executions, may name."""


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
    """An evaluation by name, a rule over calls or executions, or a function that is a rule."""

    name: str = Field(min_length=1)
    """Its name in tables and reports."""
    use: str | None = None
    """A ready rule, whose keys are those of its file where the recipe does not say otherwise."""
    evaluation: str | None = None
    """Name of an evaluation; its value is taken."""
    from_: Literal["runner", "agent", "any"] = Field(default="runner", alias="from")
    """Whose word counts."""
    on: Literal["llm", "tool", "retrieval", "embedding", "agent", "node", "rollout"] | None = None
    """The kind of call a rule looks at; `rollout`: the execution, beside its group."""
    when: str = "true"
    """SQL predicate over the columns of `calls` or `executions`, and ready columns."""
    value: str | None = None
    """SQL expression over the same columns; a number."""
    let: dict[str, str] = Field(default={})
    """Names for JSON inside arguments and results: `rows = "result:$.rows"`."""
    params: dict[str, sql.Parameter] = Field(default={})
    """Values that the SQL names as `:name`; of a Python rule its keyword arguments."""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """A JSON schema; the ready column `fits` says whether an answer or result is of it."""
    python: str | None = None
    """A Python rule: its name among the entry points `ltrain.rules`."""
    credit_to: Credited = Credited.SELF
    """Which call gets the rule's value."""
    potential: bool = False
    """The value is a potential: contributions are its differences, which cannot move the
    optimum."""
    initial_potential: float = 0.0
    """The potential before the first call."""
    final_potential: float = 0.0
    """The potential after the end; other than 0 the sum depends on the execution."""
    gate: str | None = None
    """SQL predicate over the execution, such as `reward > 0.5`: elsewhere nothing is given."""
    min: float | None = None
    """Bound of the sum over an execution, in call order."""
    max: float | None = None
    """The other bound of that sum."""
    weight: float = 1.0
    """Multiplies what it gives."""

    @model_validator(mode="before")
    @classmethod
    def _ready(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("use"):
            return given
        try:
            return library.apply_overrides(given)
        except UnknownName as error:
            raise BadRule(str(error)) from error

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = (self.evaluation is not None, bool(self.on or self.value), self.python is not None)
        if kinds[:2] == (True, True):
            raise BadRule(f"Reward '{self.name}' has an evaluation and a rule; it must be one.")
        if kinds[2] and any(kinds[:2]):
            raise BadRule(f"Reward '{self.name}' has `python` beside another rule; it must be one.")
        if not any(kinds) or (kinds[1] and not (self.on and self.value)):
            raise BadRule(
                f"Reward '{self.name}' must have `evaluation`, or `on` and `value` of a rule, or "
                "`python`, or `use` of a ready rule."
            )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise BadRule(f"Reward '{self.name}': min = {self.min} is above max = {self.max}.")
        return self

    @model_validator(mode="after")
    def _sound_potential(self) -> Self:
        if not self.potential:
            return self
        if self.on in (None, "rollout") or self.credit_to == Credited.ROLLOUT:
            raise BadRule(f"Rule '{self.name}': a potential is of calls, and credits calls.")
        if self.gate is not None or (self.min, self.max) != (None, None):
            raise BadRule(
                f"Rule '{self.name}': a gate or a bound would break the sum of a potential's "
                "differences; bound `value` itself. It cannot be farmed and needs no gate."
            )
        return self

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        if self.python is not None:
            python_rules.find_entry_point(self.name, self.python)
        if (self.python or self.on == "rollout") and self.credit_to not in _WHOLE:
            raise BadRule(
                f"Rule '{self.name}': credit_to '{self.credit_to.value}' is of rules over calls; "
                "a rule over the rollout credits it, and a Python rule names the calls itself."
            )
        if self.schema_ is not None and (fault := schema_error(self.schema_)) is not None:
            raise BadRule(f"Rule '{self.name}', schema: {fault}.")
        if self.value is not None:
            columns = self.columns
            for field, text, wanted in (("when", self.when, bool), ("value", self.value, float)):
                sql.check_expression(self.name, field, self.bound(text), columns, wanted)
        if self.gate is not None:
            sql.check_expression(self.name, "gate", self.bound(self.gate), EXECUTION_COLUMNS, bool)
        return self

    @property
    def columns(self) -> pl.Schema:
        """What its SQL may name, `let` included."""
        there = EXECUTION_COLUMNS if self.on == "rollout" else CALL_COLUMNS
        if self.schema_ is None:
            there = pl.Schema({name: dtype for name, dtype in there.items() if name != "fits"})
        named = sql.json_path_columns(self.name, there, self.let)
        return pl.Schema({**there, **dict.fromkeys(named, pl.String())})

    def bound(self, text: str) -> str:
        """Put its parameters into `text`."""
        return sql.bind_parameters(self.name, text, self.params)


_WHOLE = (Credited.SELF, Credited.ROLLOUT)
