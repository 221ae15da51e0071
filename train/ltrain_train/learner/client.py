"""The loop's client of the learner process.

`start` returns at once, so that the model loads while the policy server starts. An error of the
learner is raised here again; if the process dies, the client raises `ChildDied` with the end of its
log.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal, NoReturn, Self, Unpack

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.settings import LEARNER_BACKEND
from ltrain_train import errors
from ltrain_train.errors import LearnerFailed
from ltrain_train.learner.backend import backend_name, find_backend
from ltrain_train.learner.checkpoint import check_fit
from ltrain_train.learner.heartbeat import ProgressClock
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.protocol import VERSIONS, Job, JobSettings, Place, StepReport
from ltrain_train.learner.samples import Kind
from ltrain_train.policy import Reference, SharedWeights
from ltrain_train.processes import Child, Children, Command, JsonChild, scratch_path
from ltrain_transforms.errors import NoCluster
from ltrain_transforms.recipe import Train

__all__ = ["LearnerClient", "StepReport"]

POLL = 0.5
"""Seconds between two checks whether a learner that does not answer has died."""
TERM_GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL: Ray ignores SIGTERM while it starts, and SIGKILL is safe
because files are written atomically."""
RAY_SOCKET_BYTES = len("r/session_2026-11-22_10-32-50_887843_4194304/sockets/plasma_store")
"""Bytes of the longest socket path in Ray's folder."""
CLOSE_GRACE = 10.0
"""Seconds for a learner to exit by itself when it is closed."""


class LearnerClient(ExitStack):
    """One learner process; the `with` block starts and ends it."""

    def __init__(
        self,
        train: Train,
        base: Path,
        *,
        directory: Path,
        children: Children | None = None,
        **settings: Unpack[JobSettings],
    ) -> None:
        """Describe a learner process.

        Args:
            train: the training settings; of these, the process has the ones of `Job`.
            base: directory of the model at the start of training.
            directory: folder of the log.
            children: owner of the process; by default the client's own.
            settings: further fields of the `Job`.
        """
        super().__init__()
        self._scratch = _scratch_path(None if train.ray_address is None else directory.absolute())
        absolute: dict[str, Any] = {
            name: value.absolute() if isinstance(value, Path | Reference) else value
            for name, value in settings.items()
        }
        absolute["journal"] = directory.absolute() / f"learner-{settings['policy']}.jsonl"
        self.job = Job.from_train(train, base=base.absolute(), scratch=self._scratch, **absolute)
        self.log = directory / "learner.log"
        self._children = Children() if children is None else children
        self._process: JsonChild | None = None
        self._ready = self._is_busy = False
        self.hang_timeout = train.hang_timeout
        """Seconds without progress after which the process counts as hung."""
        self._progress = ProgressClock(self._scratch)

    def check_fit(self) -> None:
        """Check that the checkpoint, if there is one, fits the base and the settings.

        Raises:
            BadCheckpoint: when it does not, or is incomplete.
        """
        if self.job.checkpoint is not None:
            check_fit(self.job.checkpoint, self.job)

    def start(self) -> None:
        """Start the process and return at once; `wait` or the first request waits for the model.

        Raises:
            BadRun: when this machine cannot train the job.
        """
        name = backend_name(self.job.backend)
        env = find_backend(name).environment(self.job) | {LEARNER_BACKEND.name: name}
        self._process = JsonChild(partial(self._start_child, env))
        self._progress.restart()
        self._send("start", **self.job.encode())

    def _start_child(self, env: Mapping[str, str], *pipes: int) -> Child:
        argv = [sys.executable, "-m", "ltrain_train.learner.service", *map(str, pipes)]
        return self._children.start(
            "learner",
            Command(
                argv=argv, env=env, log=self.log, pass_fds=pipes, grace=TERM_GRACE,
                scratch=self._scratch,
            ),
        )  # fmt: skip

    def ready(self) -> bool:
        """Return whether the model is loaded, without waiting.

        Raises:
            LtrainError: when the model cannot be loaded.
        """
        if not self._ready and self._has_answer(0):
            self._receive()
            self._ready = True
        if not self._ready:
            self._require_progress("start")
        return self._ready

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the model is loaded.

        Raises:
            LtrainError: when the model cannot be loaded, or is not loaded after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self.ready():
            if until is not None and time.monotonic() > until:
                raise LearnerFailed(
                    f"The learner is not ready after {timeout:g} s. Its log is {self.log}."
                )
            self._has_answer(POLL)

    def step(
        self,
        samples: Path,
        objective: Objective,
        *,
        version: int,
        dataset: str = "",
        versions: Mapping[int, Reference] | None = None,
    ) -> StepReport:
        """Make one update from the rows in `samples`.

        Args:
            samples: parquet file or folder of the rows.
            objective: the loss and the optimizer settings.
            version: the policy version that the weights are, with which drift is measured.
            dataset: id of the dataset, for spans.
            versions: the weights of other versions that answered calls of rendered rows.

        Raises:
            BadSamples: when the rows cannot be trained on.
        """
        answer = self._request(
            "step",
            samples=samples,
            objective=objective.encode(),
            version=version,
            dataset=dataset,
            versions=VERSIONS.dump_python(dict(versions or {}), mode="json"),
        )
        return StepReport(**(answer | {"warnings": tuple(answer["warnings"])}))

    def log_probs(self, samples: Path, kind: Kind = "rl") -> list[list[float]]:
        """Return the log-probabilities of each row's response tokens under the current weights."""
        log_probs: list[list[float]] = self._request("log_probs", samples=samples, kind=kind)
        return log_probs

    def share(self) -> SharedWeights | None:
        """Round the policy, adapter merged, into memory that vLLM on this machine can open.

        It lasts until `unshare`. None: this learner cannot share its weights.
        """
        message = self._request("share", dtype=self.job.dtype)
        return None if message is None else SharedWeights.model_validate(message)

    def unshare(self) -> None:
        """Free the memory of `share`."""
        self._request("unshare")

    def export(
        self,
        directory: Path,
        *,
        dtype: Literal["bf16", "fp32"] | None = None,
        shared: bool = False,
    ) -> None:
        """Write the policy as a model directory, adapter merged; default `dtype`: the recipe's.

        With `shared` the weights are those that `share` has rounded, in the recipe's `dtype`.
        """
        self._request("export", directory=directory, dtype=dtype or self.job.dtype, shared=shared)

    def export_adapter(self, directory: Path) -> None:
        """Write the adapter as it was trained, in PEFT's layout.

        Raises:
            BadBase: when all weights are trained, so that there is no adapter.
        """
        self._request("export_adapter", directory=directory)

    def save(self, directory: Path) -> None:
        """Write a checkpoint: trained weights, optimizer and step counts."""
        self._request("save", directory=directory)

    def load(self, directory: Path) -> None:
        """Load a checkpoint, from which training continues.

        Raises:
            BadCheckpoint: when it is incomplete, or of another base model or LoRA shape.
        """
        self._request("load", directory=directory)

    def move(self, to: Place) -> None:
        """Move the model into the memory of the GPU, or of the host; training needs the former."""
        self._request("move", to=to)

    def select(self, policy: str, recipe: str, checkpoint: Path | None) -> None:
        """Train another policy with the same base from now on.

        Args:
            recipe: digest of its recipe.
            checkpoint: its checkpoint; None: it starts from the base, with a new adapter.

        Raises:
            BadCheckpoint: when the checkpoint is incomplete, or does not fit.
        """
        self._request("select", policy=policy, recipe=recipe, checkpoint=checkpoint)

    def close(self) -> None:
        """End the process, at once if it is loading or computing; a second call does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        child = process.process
        if self._is_busy or not self._ready:
            child.request_stop()  # it sees closed requests only at its next read
        process.close()
        try:
            with suppress(TimeoutError):
                child.wait(CLOSE_GRACE)
        finally:
            child.stop()

    def __enter__(self) -> Self:
        self.callback(self.close)
        self.start()
        return self

    def _request(self, name: str, **arguments: Any) -> Any:
        if self._process is None:
            raise LearnerFailed(
                f"The learner cannot {name} before it is started. Use it in a `with` block."
            )
        self.wait()
        self._is_busy = True
        self._progress.restart()
        self._send(name, **arguments)
        while not self._has_answer(POLL):
            self._require_progress(name)
        self._is_busy = False
        return self._receive()

    def _require_progress(self, name: str) -> None:
        """Stop the process if it hangs."""
        seconds = self._progress.seconds()
        if self._process is None or seconds < self.hang_timeout:
            return
        self._process.process.stop()
        raise LearnerFailed(
            f"The learner hangs: it has made no progress for {seconds:.0f} s in the request "
            f"'{name}', so it was stopped. Its log is {self.log}. The same command continues from "
            "the last checkpoint. If the learner is only slow, raise train.hang_timeout."
        )

    def _send(self, name: str, **arguments: Any) -> None:
        plain = {k: str(v.absolute()) if isinstance(v, Path) else v for k, v in arguments.items()}
        try:
            self._started.send({"do": name, **plain})
        except BrokenPipeError:
            self._has_answer(POLL)  # raises how the process died

    def _has_answer(self, seconds: float) -> bool:
        """Wait up to `seconds` for an answer, and return whether there is one."""
        try:
            return self._started.poll(seconds)
        except EOFError:
            self._raise_death()

    def _receive(self) -> Any:
        answer = json.loads(self._started.receive())
        if "error" in answer:
            raise _rebuild_error(answer["kind"], answer["error"])
        return answer["ok"]

    @property
    def _started(self) -> JsonChild:
        if self._process is None:
            raise LearnerFailed(f"The learner ended; its log is {self.log}.")
        return self._process

    def _raise_death(self) -> NoReturn:
        child = self._started.process
        try:
            child.wait(CLOSE_GRACE)
        finally:
            child.check()
        raise LearnerFailed(f"The learner ended; its log is {self.log}.")


def _scratch_path(shared: Path | None) -> Path:
    """Return a path for the process's scratch folder, in the folder that all nodes share."""
    if shared is None:
        return scratch_path("learner", parent=None, max_socket_name=RAY_SOCKET_BYTES)
    return shared / f"learner-{os.getpid()}-{token_hex(4)}"


def _rebuild_error(kind: str, sentence: str) -> LtrainError:
    """Return the learner's error as an exception of this process."""
    error_class = NoCluster if kind == NoCluster.__name__ else getattr(errors, kind, LearnerFailed)
    error: LtrainError = error_class(sentence)
    return error
