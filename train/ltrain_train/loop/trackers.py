"""Curves of a run in TensorBoard, W&B and MLflow, written by their own libraries.

A tracker gets every number of a wave that has one. Its failure is a warning: the journal has all
of it, and the run goes on.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Protocol

from ltrain_train.errors import BadRun
from ltrain_train.runs import Journal, Wave

_logger = logging.getLogger("ltrain.loop")


class Tracker(Protocol):
    """Records numbers under names, for increasing steps."""

    place: str
    """Where the curves are."""

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


class MlFlow:
    """A run of MLflow, at MLFLOW_TRACKING_URI or in a database in the run's folder."""

    def __init__(self, journal: Journal) -> None:
        from mlflow.tracking import MlflowClient

        # a database needs all of mlflow; the client of a server is in mlflow-skinny too
        database = f"sqlite:///{(journal.folder / 'mlflow.db').resolve()}"
        self.place = os.environ.get("MLFLOW_TRACKING_URI") or database
        self._client = MlflowClient(self.place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or ", ".join(journal.policies)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        tags = {"recipe": journal.recipe, "policies": json.dumps(journal.policies)}
        run = self._client.create_run(experiment, run_name=journal.run, tags=tags)
        self._run: str = run.info.run_id

    def log(self, values: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


TRACKERS: dict[str, Callable[[Journal], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MlFlow,
}
"""By the name in the recipe, which is also that of the library."""


@contextmanager
def open_trackers(
    names: Sequence[str], journal: Journal, notify: Callable[[str], None]
) -> Iterator[Callable[[Wave], None]]:
    """Yield a function that records a wave in every tracker.

    Args:
        names: keys of `TRACKERS`.
        notify: called with the place of each tracker, as a sentence.
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
            tracker = _begin(name, journal)
            stack.callback(_warn_of_failure, name, tracker.close)
            trackers[name] = tracker
            notify(f"Curves: {name}, {tracker.place}.")

        def record(wave: Wave) -> None:
            place = f"{wave.policy}/" if len(journal.policies) > 1 else ""
            values = {f"{place}{name}": value for name, value in wave_values(wave).items()}
            for name, tracker in trackers.items():
                _warn_of_failure(name, tracker.log, values, wave.wave)

        yield record


def _begin(name: str, journal: Journal) -> Tracker:
    try:
        return TRACKERS[name](journal)
    except Exception as error:  # a library may raise anything, such as that a key is missing
        raise BadRun(
            f"train.trackers names '{name}', and this library cannot begin: {error} Follow its "
            "advice, or remove the name."
        ) from error


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
