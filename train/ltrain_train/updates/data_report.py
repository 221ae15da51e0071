"""The report on the data of a training on stored traces, printed before a model is loaded."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """The data that a version is trained on."""

    policy: str
    from_version: int
    """The version at the start of training."""
    dataset: str
    """The dataset's id."""
    folder: Path

    @property
    def trained(self) -> int:
        """Number of rows, or pairs, to train on."""
        raise NotImplementedError

    def facts(self) -> dict[str, str]:
        """Return the facts of the printed report by name."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return asdict(self) | {"folder": str(self.folder)}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the printed report."""
        facts = self.facts() | {
            "starts from": f"{self.policy}@{self.from_version}",
            "dataset": f"{self.dataset} in {self.folder}",
        }
        width = max(map(len, facts))
        return (f"{name:<{width}}  {fact}" for name, fact in facts.items())

    def print(self, *, as_json: bool, is_last: bool = False) -> None:
        """Print the lines; as JSON only if the object of a new version does not follow."""
        if not as_json:
            print("\n".join(self.lines()), flush=True)
        elif is_last or not self.trained:
            print(json.dumps(self.as_dict()), flush=True)


def count_left_out(left_out: Mapping[str, int]) -> str:
    """Return how many are left out, and for which reasons."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in left_out.items())
    return f"{sum(left_out.values())} left out" + (f" ({reasons})" if reasons else "")
