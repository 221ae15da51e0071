"""A stage of the check: its rows, its limit in seconds, and the module that makes the rows."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

TINY = Path(__file__).parents[2] / "tests" / "train" / "tiny.py"
"""The program that writes a tiny random model."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured value, and its bar if it has one."""

    name: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""
    """Text behind the value, such as an error."""

    @property
    def bar(self) -> str:
        """The bar as the table shows it."""
        low = f"at least {self.at_least:,g}" if self.at_least is not None else ""
        high = f"at most {self.at_most:,g}" if self.at_most is not None else ""
        return ", ".join(filter(None, (low, high)))

    @property
    def ok(self) -> bool | None:
        """Whether the value meets its bar; None without a bar."""
        if not self.bar:
            return None
        low = self.at_least is None or self.value >= self.at_least
        return low and (self.at_most is None or self.value <= self.at_most)

    def encode(self) -> dict[str, Any]:
        """Return the row as JSON has it."""
        row = asdict(self)
        del row["at_least"], row["at_most"]
        return row | {"bar": self.bar, "ok": self.ok}


@dataclass(frozen=True, slots=True)
class Check:
    """The machine and the sizes of one check."""

    device: str
    """`cuda` or `cpu`."""
    quick: bool
    """Whether a tiny random model and few tokens take the place of the real sizes."""
    model: Path
    """Directory of SmolLM2-135M-Instruct."""
    folder: Path
    """Temporary folder of the stage."""

    def bar(self, value: float) -> float | None:
        """Return a bar that holds for the real sizes on a GPU."""
        return None if self.quick or self.device == "cpu" else value

    def policy_model(self) -> Path:
        """Return the directory of the model that is served and trained."""
        if not self.quick:
            return self.model
        tiny = self.folder / "tiny"
        subprocess.run([sys.executable, TINY, tiny], check=True, stdout=sys.stderr)
        return tiny


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the check, which runs in a process of its own."""

    name: str
    limit: float
    """Seconds after which the stage is ended."""
    module: str
    """Module of this folder whose function `rows` makes the rows."""
    argument: str = ""
    """Second argument of that function."""

    def rows(self, check: Check) -> Iterator[Row]:
        """Yield the rows, each as soon as it is measured."""
        module = import_module(f"benchmarks.gpu.{self.module}")
        rows: Iterator[Row] = module.rows(check, self.argument)
        yield from rows


STAGES = (
    Stage("doctor", 120, "doctor"),
    Stage("numbers-fp32", 240, "exactness", "fp32"),
    Stage("numbers-bf16", 240, "exactness", "bf16"),
    Stage("sampled", 240, "sampled"),
    Stage("served", 300, "served"),
    Stage("trained-135m", 240, "trained", "smollm2-135m"),
    Stage("trained-1.5b", 240, "trained", "qwen2.5-1.5b"),
    Stage("trained-3b-lora", 240, "trained", "llama-3.2-3b"),
    Stage("weights-1.5b", 300, "weights"),
    Stage("loop", 300, "loop", "split"),
    Stage("loop-swap", 300, "loop", "swap"),
)
"""The stages in their order: the numbers first, then the rates, then whole runs."""


def find_stage(name: str) -> Stage:
    """Return the stage of that name.

    Raises:
        SystemExit: when there is none.
    """
    for stage in STAGES:
        if stage.name == name:
            return stage
    names = ", ".join(stage.name for stage in STAGES)
    raise SystemExit(f"Unknown stage '{name}'. Choose from: {names}.")
