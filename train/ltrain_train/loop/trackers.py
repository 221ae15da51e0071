"""Curves of a run in TensorBoard and W&B, written by their own libraries.

A tracker gets every number of a wave that has one. Its failure is a warning: the journal has all
of it, and the run goes on.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Protocol

from ltrain_train.errors import BadRun
from ltrain_train.loop.journal import Journal, Wave

_logger = logging.getLogger("ltrain.loop")


class Tracker(Protocol):
    """Records numbers under names, for increasing steps."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Record the values of a step."""

    def close(self) -> None:
        """Write what is pending, and end."""


class TensorBoard:
    """Event files that `tensorboard --logdir` reads."""

    def __init__(self, journal: Journal) -> None:
        from tensorboard.summary import Writer

        self.place = str(journal.folder / "tensorboard")
        self._writer = Writer(self.place)

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of W&B; its own variables, such as WANDB_MODE and WANDB_PROJECT, configure it."""

    def __init__(self, journal: Journal) -> None:
        import wandb

        self._run = wandb.init(
            name=journal.run,
            group=", ".join(journal.policies),
            config={"recipe": journal.recipe, "policies": journal.policies},
            dir=journal.folder,
        )
        self.place = self._run.url or str(Path(self._run.dir).parent)

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Journal], TensorBoard | WeightsAndBiases]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}
"""By the name in the recipe, which is also that of the library."""


@contextmanager
def open_trackers(
    names: Sequence[str], journal: Journal, notify: Callable[[str], None]
) -> Iterator[Callable[[Wave], None]]:
    """Yield a function that records a wave in every tracker.

    Args:
        names: keys of `TRACKERS`.
        journal: the run's.
        notify: called with the place of each tracker, as a sentence.

    Raises:
        BadRun: when a library is not installed.
    """
    for name in names:
        if find_spec(name) is None:
            raise BadRun(
                f"train.trackers names '{name}', and this library is not installed. Run `pip "
                f"install {name}`, or remove the name."
            )
    with ExitStack() as stack:
        trackers: dict[str, Tracker] = {}
        for name in names:
            tracker = TRACKERS[name](journal)
            stack.callback(_warn_of_failure, name, tracker.close)
            trackers[name] = tracker
            notify(f"Curves: {name}, {tracker.place}.")

        def record(wave: Wave) -> None:
            place = f"{wave.policy}/" if len(journal.policies) > 1 else ""
            values = {f"{place}{name}": value for name, value in wave_values(wave).items()}
            for name, tracker in trackers.items():
                _warn_of_failure(name, tracker.log, values, wave.wave)

        yield record


def wave_values(wave: Wave) -> dict[str, float]:
    """Return the finite numbers of a wave by `<mode>/<name>`."""
    values = {
        "score": wave.score,
        "rollouts": wave.rollouts,
        "failed": wave.rollouts - wave.outcomes.get("ok", 0),
        **{f"score/{name}": value for name, value in wave.scores.items()},
    }
    if wave.mode == "train":
        seconds = sum(wave.seconds.values())
        values |= {
            "rows": wave.samples,
            "tokens": wave.tokens,
            "drops": sum(wave.drops.values()),
            "undone": wave.undone,
            "tokens_per_second": wave.tokens / seconds if seconds else None,
            **wave.metrics,
        }
    values |= {f"seconds/{name}": value for name, value in wave.seconds.items()}
    return {
        f"{wave.mode}/{name}": float(value)
        for name, value in values.items()
        if value is not None and isfinite(value)
    }


def _warn_of_failure(name: str, call: Callable[..., None], *arguments: object) -> None:
    try:
        call(*arguments)
    except Exception as error:  # a library may raise anything, and no run ends for its curves
        _logger.warning("ltrain: %s did not record a wave: %s", name, error)
