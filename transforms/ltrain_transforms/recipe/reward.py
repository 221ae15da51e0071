"""Rewards: evaluations by name, and rules over calls and executions."""

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from ltrain_instrument.errors import UnknownName
from ltrain_transforms import rules, tables
from ltrain_transforms.errors import BadRule
from ltrain_transforms.recipe.judge import JUDGE, Judge
from ltrain_transforms.recipe.section import Parameter, Section

if TYPE_CHECKING:
    import polars as pl


class RuleKind(StrEnum):
    """The kinds of rewards; `ltrain_transforms.rewards.kinds` has a class for each.

    The table of `docs/rules.md` is made from the sentences below the members.
    """

    EVALUATION = "evaluation"
    """Key `evaluation`: reads a score that the runner, the agent or an evaluator recorded."""
    CALLS = "calls"
    """Key `on` with a kind of call, such as `tool`: reads each call of that kind."""
    ROLLOUT = "rollout"
    """`on = "rollout"`: reads each execution, with the figures of its group."""
    PYTHON = "python"
    """Key `python`: reads all calls of an execution."""


class Credited(StrEnum):
    SELF = "self"
    """The call that the rule is evaluated on."""
    REQUESTER = "requester"
    """The LLM call that requested the tool."""
    PREVIOUS = "previous"
    """The trained call before that call."""
    LAST = "last"
    """The last trained call of the execution."""
    ROLLOUT = "rollout"
    """The whole execution."""


class Reward(Section):
    """An evaluation by name, an SQL rule over calls or executions, or a Python rule."""

    name: str = Field(min_length=1)
    """The reward's name in tables and reports."""
    use: str | None = None
    """Name of a ready rule; keys of the recipe override those of its file."""
    evaluation: str | None = None
    """Name of an evaluation; the reward is its value."""
    from_: Literal["runner", "person", "agent", "any"] = Field(default="runner", alias="from")
    """Who may write the evaluation."""
    on: Literal["llm", "tool", "retrieval", "embedding", "agent", "node", "rollout"] | None = None
    """The kind of call that a rule is evaluated on; `rollout`: the execution, with its group."""
    when: str = "true"
    """SQL predicate over the columns of `calls` or `executions`, and derived columns."""
    value: str | None = None
    """SQL expression over the same columns that returns a number."""
    let: dict[str, str] = Field(default={})
    """Names for values of JSON arguments and results: `rows = "result:$.rows"`."""
    params: dict[str, Parameter] = Field(default={})
    """Values that the SQL uses as `:name`; for a Python rule its keyword arguments."""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """A JSON schema; the derived column `fits` is true where an answer or result matches it."""
    python: str | None = None
    """Name of a Python rule in the entry point group `ltrain.rules`."""
    credit_to: Credited = Credited.SELF
    """Which call gets the rule's value."""
    potential: bool = False
    """The value is a potential: contributions are its differences, which do not change the
    optimal policy."""
    initial_potential: float = 0.0
    """The potential before the first call."""
    final_potential: float = 0.0
    """The potential after the last call."""
    gate: str | None = None
    """SQL predicate over the execution, such as `reward > 0.5`; where it is false, the rule adds
    nothing."""
    min: float | None = None
    """Lower bound of the sum over an execution, applied in call order."""
    max: float | None = None
    """Upper bound of the sum over an execution, applied in call order."""
    weight: float = 1.0
    """Factor of the value."""

    @model_validator(mode="before")
    @classmethod
    def _with_ready_rule(cls, keys: Any) -> Any:
        if not isinstance(keys, dict) or not keys.get("use"):
            return keys
        try:
            ready = rules.library.apply_overrides(keys)
        except UnknownName as error:
            raise BadRule(str(error)) from error
        return {"evaluation": ready["name"], **ready} if keys["use"] == JUDGE else ready

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = (self.evaluation is not None, bool(self.on or self.value), self.python is not None)
        if kinds[:2] == (True, True):
            raise BadRule(
                f"Reward '{self.name}' has `evaluation` and keys of a rule. Remove one of the two."
            )
        if kinds[2] and any(kinds[:2]):
            raise BadRule(
                f"Reward '{self.name}' has `python` and another rule. Remove one of the two."
            )
        if not any(kinds) or (kinds[1] and not (self.on and self.value)):
            raise BadRule(
                f"Reward '{self.name}' must have `evaluation`, or `on` and `value` of a rule, or "
                "`python`, or `use` of a ready rule."
            )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise BadRule(f"Reward '{self.name}': min = {self.min} is above max = {self.max}.")
        return self

    @model_validator(mode="after")
    def _sound_judge(self) -> Self:
        _ = self.judge
        return self

    @model_validator(mode="after")
    def _sound_potential(self) -> Self:
        if not self.potential:
            return self
        if self.on in (None, "rollout") or self.credit_to == Credited.ROLLOUT:
            raise BadRule(
                f"Rule '{self.name}': a potential is computed on calls and credits calls. Set `on` "
                "to a kind of call, and credit_to to anything but 'rollout'."
            )
        if self.gate is not None or (self.min, self.max) != (None, None):
            raise BadRule(
                f"Rule '{self.name}': a gate or a bound would break the sum of a potential's "
                "differences. Remove gate, min and max; bound `value` itself if needed."
            )
        return self

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        if self.python is not None:
            rules.python_rules.find_entry_point(self.name, self.python)
        if (
            self.kind in (RuleKind.PYTHON, RuleKind.ROLLOUT)
            and self.credit_to not in _WITHOUT_CHOICE
        ):
            raise BadRule(
                f"Rule '{self.name}': credit_to '{self.credit_to.value}' needs an SQL rule "
                "over calls. A rule over the rollout credits the rollout, and a Python rule names "
                "the calls itself. Remove credit_to."
            )
        if self.schema_ is not None and (fault := rules.schema_error(self.schema_)) is not None:
            raise BadRule(f"Rule '{self.name}', schema: {fault}.")
        if self.value is not None:
            columns = self.columns
            for field, text, wanted in (("when", self.when, bool), ("value", self.value, float)):
                rules.sql.check_expression(self.name, field, self.bound(text), columns, wanted)
        if self.gate is not None:
            gate, columns = self.bound(self.gate), tables.GATE_COLUMNS
            rules.sql.check_expression(self.name, "gate", gate, columns, bool)
        return self

    @property
    def judge(self) -> Judge | None:
        """The language model whose evaluation the reward is, if the recipe names one.

        Raises:
            BadRule: when its params are faulty.
        """
        return Judge.from_params(self.name, self.params) if self.use == JUDGE else None

    @property
    def kind(self) -> RuleKind:
        if self.evaluation is not None:
            return RuleKind.EVALUATION
        if self.python is not None:
            return RuleKind.PYTHON
        return RuleKind.ROLLOUT if self.on == "rollout" else RuleKind.CALLS

    @property
    def columns(self) -> "pl.Schema":
        """Columns that the rule's SQL may use, with the names of `let`."""
        over_rollout = self.kind == RuleKind.ROLLOUT
        columns = (tables.GATE_COLUMNS if over_rollout else tables.RULE_COLUMNS).copy()
        if self.schema_ is None:
            columns.pop("fits", None)
        named = rules.sql.json_path_columns(self.name, columns, self.let)
        columns.update(dict.fromkeys(named, tables.STRING))
        return columns

    def bound(self, text: str) -> str:
        """Return `text` with the rule's parameters inserted."""
        return rules.sql.bind_parameters(self.name, text, self.params)


_WITHOUT_CHOICE = (Credited.SELF, Credited.ROLLOUT)
