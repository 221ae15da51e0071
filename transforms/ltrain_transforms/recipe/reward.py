"""Rewards: evaluations by name, and rules over calls and executions.

`Reward` has the keys that a recipe accepts and that manifests and the digest store for each reward;
a class of `REWARD_KINDS` has the checks of its kind, and the keys that only a new kind has.
`ltrain_transforms.rewards.kinds` has a class with the behaviour of each.
"""

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from ltrain_instrument.errors import UnknownName
from ltrain_transforms import rules, tables
from ltrain_transforms.errors import BadRule
from ltrain_transforms.recipe.judge import JUDGE, Judge
from ltrain_transforms.recipe.section import Parameter, Section

if TYPE_CHECKING:
    import polars as pl


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


RuleInput = Literal["llm", "tool", "retrieval", "embedding", "agent", "node", "signal", "rollout"]


class Reward(Section):
    """An evaluation by name, an SQL rule over calls or executions, or a Python rule."""

    name: str = Field(min_length=1)
    """The reward's name in tables and reports."""
    use: str | None = None
    """Name of a ready rule; keys of the recipe override those of its file."""
    evaluation: str | None = None
    """Name of an evaluation; the reward is its value."""
    from_: Literal["runner", "person", "agent", "any"] = Field(default="runner", alias="from")
    """Who may write the evaluation; `any`: where a runner did, its value alone counts."""
    on: RuleInput | None = None
    """The kind of call that a rule is evaluated on; `signal`: the other spans, events and log
    records of a call; `rollout`: the execution, with its group."""
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

    credit_choices: ClassVar[tuple[Credited, ...]] = tuple(Credited)

    @classmethod
    def claims(cls, keys: Mapping[str, Any]) -> bool:
        """Return whether these keys of a recipe have a key that makes a reward of this kind."""
        return False

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        self._check()
        return self

    @model_validator(mode="wrap")  # the last validator, so that only a kind's own class checks it
    @classmethod
    def _of_its_kind(cls, keys: Any, make: ModelWrapValidatorHandler["Reward"]) -> "Reward":
        if not isinstance(keys, dict):
            return make(keys)
        keys = _with_ready_rule(keys)
        kind = _kind(keys) if cls is Reward else cls
        return make(keys) if kind is cls else kind.model_validate(keys)

    def __new__(cls, **keys: Any) -> Self:
        """Return a reward of the kind that the keys make; `__init__` checks them."""
        kind: Any = cls
        if cls is Reward:
            with suppress(BadRule):  # `__init__` raises it with its place
                kind = _kind(_with_ready_rule(keys))
        made: Self = super().__new__(kind)
        return made

    def _check(self) -> None:
        if type(self) is Reward:
            raise BadRule(self._unclear_kind())
        if self.min is not None and self.max is not None and self.min > self.max:
            raise BadRule(f"Reward '{self.name}': min = {self.min} is above max = {self.max}.")
        self._check_potential()
        if self.credit_to not in self.credit_choices:
            raise BadRule(
                f"Rule '{self.name}': credit_to '{self.credit_to.value}' needs an SQL rule "
                "over calls. A rule over the rollout credits the rollout, and a Python rule names "
                "the calls itself. Remove credit_to."
            )
        if self.schema_ is not None and (fault := rules.schema_error(self.schema_)) is not None:
            raise BadRule(f"Rule '{self.name}', schema: {fault}.")
        if self.gate is not None:
            gate, columns = self.bound(self.gate), tables.GATE_COLUMNS
            rules.sql.check_expression(self.name, "gate", gate, columns, bool)

    def _check_potential(self) -> None:
        if self.potential:
            raise BadRule(
                f"Rule '{self.name}': a potential is computed on calls and credits calls. Set `on` "
                "to a kind of call, and credit_to to anything but 'rollout'."
            )

    def _unclear_kind(self) -> str:
        """Return the fault of a reward with the keys of no kind or of several kinds."""
        if self.evaluation is not None and (self.on or self.value):
            return (
                f"Reward '{self.name}' has `evaluation` and keys of a rule. Remove one of the two."
            )
        if self.python is not None:
            return f"Reward '{self.name}' has `python` and another rule. Remove one of the two."
        return (
            f"Reward '{self.name}' must have `evaluation`, or `on` and `value` of a rule, or "
            "`python`, or `use` of a ready rule."
        )

    @property
    def judge(self) -> Judge | None:
        """The language model whose evaluation the reward is, if the recipe names one.

        Raises:
            BadRule: when its params are faulty.
        """
        return None

    def bound(self, text: str) -> str:
        """Return `text` with the rule's parameters inserted."""
        return rules.sql.bind_parameters(self.name, text, self.params)


def _kind(keys: Mapping[str, Any]) -> type[Reward]:
    """Return the class of the keys' kind; `Reward` if they are of none or of several."""
    kinds = [kind for kind in REWARD_KINDS.values() if kind.claims(keys)]
    return kinds[0] if len(kinds) == 1 else Reward


def _with_ready_rule(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a reward, with the keys of the ready rule that it uses."""
    if not keys.get("use"):
        return keys
    try:
        ready = rules.library.apply_overrides(keys)
    except UnknownName as error:
        raise BadRule(str(error)) from error
    return {"evaluation": ready["name"], **ready} if keys["use"] == JUDGE else ready


class EvaluationReward(Reward):
    """Key `evaluation`: reads a score that the runner, the agent or an evaluator recorded."""

    evaluation: str

    @classmethod
    def claims(cls, keys: Mapping[str, Any]) -> bool:
        return keys.get("evaluation") is not None

    def _check(self) -> None:
        super()._check()
        _ = self.judge

    @property
    def judge(self) -> Judge | None:
        return Judge.from_params(self.name, self.params) if self.use == JUDGE else None


class SqlReward(Reward):
    """An SQL rule: a predicate and a value."""

    @classmethod
    def claims(cls, keys: Mapping[str, Any]) -> bool:
        return bool(keys.get("on") or keys.get("value"))

    def _check(self) -> None:
        if not (self.on and self.value):
            raise BadRule(self._unclear_kind())
        super()._check()
        columns = self.columns
        for field, text, wanted in (("when", self.when, bool), ("value", self.value, float)):
            rules.sql.check_expression(self.name, field, self.bound(text), columns, wanted)

    @property
    def columns(self) -> "pl.Schema":
        """Columns that the rule's SQL may use, with the names of `let`."""
        columns = self._input_columns().copy()
        if self.schema_ is None:
            columns.pop("fits", None)
        named = rules.sql.json_path_columns(self.name, columns, self.let)
        columns.update(dict.fromkeys(named, tables.STRING))
        return columns

    def _input_columns(self) -> "pl.Schema":
        return tables.RULE_COLUMNS


class CallReward(SqlReward):
    """Key `on` with a kind of call, such as `tool`: reads each call of that kind."""

    @classmethod
    def claims(cls, keys: Mapping[str, Any]) -> bool:
        return super().claims(keys) and keys.get("on") not in ("signal", "rollout")

    def _check_potential(self) -> None:
        if self.credit_to == Credited.ROLLOUT:
            super()._check_potential()
        if self.potential and (self.gate is not None or (self.min, self.max) != (None, None)):
            raise BadRule(
                f"Rule '{self.name}': a gate or a bound would break the sum of a potential's "
                "differences. Remove gate, min and max; bound `value` itself if needed."
            )


Metrics = tuple[str, ...] | None
"""Names of metrics; None: every metric."""


class SignalReward(SqlReward):
    """`on = "signal"`: reads the spans, events, log records and exemplars of metrics in a call,
    once for each call."""

    @classmethod
    def claims(cls, keys: Mapping[str, Any]) -> bool:
        return keys.get("on") == "signal"

    def _check(self) -> None:
        super()._check()
        if self.schema_ is not None:
            raise BadRule(f"Rule '{self.name}': a signal has no answer or result. Remove schema.")

    def _input_columns(self) -> "pl.Schema":
        return tables.SIGNALS.schema

    @property
    def metrics(self) -> Metrics:
        """The metrics whose exemplars it reads, if it reads exemplars: by `record`, or by `value`
        or `unit`, which nothing else has."""
        when = self.bound(self.when)
        records = rules.sql.equal_texts(when, "record")
        named = rules.sql.column_names(when, self.bound(str(self.value)))
        if records is None:
            reads = f"'{tables.EXEMPLAR}'" in when or not named.isdisjoint(("value", "unit"))
        else:
            reads = tables.EXEMPLAR in records
        names = rules.sql.equal_texts(when, "name") if reads else frozenset[str]()
        return None if names is None else tuple(sorted(names))


class RolloutReward(SqlReward):
    """`on = "rollout"`: reads each execution, with the figures of its group."""

    credit_choices = (Credited.SELF, Credited.ROLLOUT)

    @classmethod
    def claims(cls, keys: Mapping[str, Any]) -> bool:
        return keys.get("on") == "rollout"

    def _input_columns(self) -> "pl.Schema":
        return tables.GATE_COLUMNS


class PythonReward(Reward):
    """Key `python`: reads all calls of an execution."""

    python: str
    credit_choices = (Credited.SELF, Credited.ROLLOUT)

    @classmethod
    def claims(cls, keys: Mapping[str, Any]) -> bool:
        return keys.get("python") is not None

    def _check(self) -> None:
        rules.python_rules.find_entry_point(self.name, self.python)
        super()._check()


REWARD_KINDS: dict[str, type[Reward]] = {
    "evaluation": EvaluationReward,
    "calls": CallReward,
    "signal": SignalReward,
    "rollout": RolloutReward,
    "python": PythonReward,
}
"""The kinds of rewards; the first sentence of each is its row in `docs/rules.md`."""
