"""The base class of all recipe sections: frozen, no unknown keys, only finite numbers."""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

Parameter = str | int | float | bool
"""The value of a parameter of a reward."""


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False
    )

    @classmethod
    def budgets(cls) -> set[str]:
        """Return the names of the keys that are marked as `BUDGET`."""
        return {name for name, field in cls.model_fields.items() if BUDGET in field.metadata}


def first_duplicate(names: Iterable[str]) -> str | None:
    """Return the first name, in alphabetical order, that occurs more than once; None for none."""
    known = list(names)
    return min((name for name in known if known.count(name) > 1), default=None)


class Budget:
    """Marks a key that does not change how a run trains.

    It says how long the run works, waits or keeps its files, or at which drift it warns or ends.
    """


BUDGET = Budget()
"""The mark, in the key's `Annotated` type. The recipe's digest leaves these keys out, so that a run
continues when one is changed."""
