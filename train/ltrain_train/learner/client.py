"""The learner as the loop sees it: a process that is started, asked and closed.

Starting returns at once: the model loads while the policy server starts. What the learner cannot
do comes back as the error it raised; its own death is a `ChildDied` with the end of its log.
"""

import json
import os
import select
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from ltrain_instrument.errors import LtrainError
from ltrain_train.learner import errors, messages
from ltrain_train.learner.environment import learner_environment
from ltrain_train.learner.errors import LearnerFailed
from ltrain_train.learner.messages import Job, StepReport
from ltrain_train.process import Child, Children
from ltrain_train.scratch import scratch_path
from ltrain_transforms.recipe import Train

__all__ = ["LearnerClient", "StepReport"]

POLL = 0.5
"""Seconds between two looks at a learner that does not answer: it may have died."""
TERM_GRACE = 3.0
"""Seconds after SIGTERM: Ray does not hear it while it starts, and no file is ever half written."""
RAY_SOCKET_BYTES = len("r/session_2026-11-22_10-32-50_887843_4194304/sockets/plasma_store")
"""Bytes of the longest path of a socket in Ray's folder."""
CLOSE_GRACE = 10.0
"""Seconds that a learner has to end by itself when it is closed."""


class LearnerClient:
    """One learner process; leaving the `with` block ends it."""

    def __init__(
        self,
        train: Train,
        base: Path,
        *,
        directory: Path,
        policy: str,
        recipe: str = "",
        home: Path | None = None,
        checkpoint: Path | None = None,
        seed: int = 0,
        ranks: int = 1,
        children: Children | None = None,
    ) -> None:
        """Describe a learner of `policy` that starts from the model directory `base`.

        `directory` gets its log, `home` its spans (None: none are written), `recipe` is the digest
        on them. `checkpoint` goes on where `save` left off. `children` may own the process.
        """
        paths = (base.absolute(), checkpoint and checkpoint.absolute(), home and home.absolute())
        self._scratch = scratch_path("ray", parent=None, max_socket_name=RAY_SOCKET_BYTES)
        self.job = Job(
            base=paths[0], checkpoint=paths[1], home=paths[2], scratch=self._scratch,
            train=train, policy=policy, recipe=recipe, seed=seed, ranks=ranks,
        )  # fmt: skip
        self.log = directory / "learner.log"
        self._children = Children() if children is None else children
        self._child: Child | None = None
        self._requests = self._answers = -1
        self._pending = b""
        self._ready = False

    def start(self) -> None:
        """Start the process and return; the first answer is awaited by `wait` or the first step."""
        read_requests, self._requests = os.pipe()
        self._answers, write_answers = os.pipe()
        numbers = (read_requests, write_answers)
        try:
            self._child = self._children.start(
                "learner",
                [sys.executable, "-m", "ltrain_train.learner", *map(str, numbers)],
                env=learner_environment(self.job.ranks, self._scratch),
                log=self.log,
                pass_fds=numbers,
                grace=TERM_GRACE,
                scratch=self._scratch,
            )
        finally:
            for number in numbers:
                os.close(number)
        self._send("start", **self.job.encode())

    def ready(self) -> bool:
        """Tell whether the model is loaded, without waiting.

        Raises:
            LtrainError: when it cannot be loaded.
        """
        if not self._ready and self._next_line(0) is not None:
            self._receive()
            self._ready = True
        return self._ready

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the model is loaded.

        Raises:
            LtrainError: when it cannot be loaded, or is not after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self.ready():
            if until is not None and time.monotonic() > until:
                raise LearnerFailed(
                    f"The learner is not ready after {timeout:g} s; see {self.log}."
                )
            self._next_line(POLL)

    def step(self, samples: Path, *, version: int, dataset: str = "") -> StepReport:
        """Make one update from the rows in `samples`, which are at most `version` new.

        Raises:
            BadSamples: when they cannot be trained on.
        """
        answer = self._request("step", samples=samples, version=version, dataset=dataset)
        return StepReport(**(answer | {"stale": tuple(answer["stale"])}))

    def log_probs(self, samples: Path) -> list[list[float]]:
        """Give the log-probabilities of each row's response tokens under the present weights."""
        log_probs: list[list[float]] = self._request("log_probs", samples=samples)
        return log_probs

    def export(self, directory: Path, *, dtype: Literal["bf16", "fp32"] | None = None) -> None:
        """Write the policy as a model directory, adapter merged; `dtype`: default the recipe's."""
        self._request("export", directory=directory, dtype=dtype or self.job.train.dtype)

    def save(self, directory: Path) -> None:
        """Write a checkpoint: trained weights, optimizer, count of steps."""
        self._request("save", directory=directory)

    def load(self, directory: Path) -> None:
        """Go on from a checkpoint.

        Raises:
            BadCheckpoint: when it is not whole, or was made from another base or shape.
        """
        self._request("load", directory=directory)

    def close(self) -> None:
        """End the process; calling it again is harmless."""
        for pipe in (self._requests, self._answers):
            if pipe >= 0:
                os.close(pipe)
        self._requests = self._answers = -1
        if self._child is not None:
            self._end_child(self._child)
            self._child = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child is not None and (kind is not None or not self._ready):
            self._child.request_stop()  # it would hear the end of its requests when it next reads them
        self.close()

    def _request(self, name: str, **arguments: Any) -> Any:
        if self._child is None:
            raise LearnerFailed(f"The learner was asked to {name}, but it is not started.")
        self.wait()
        self._send(name, **arguments)
        while self._next_line(POLL) is None:
            pass
        return self._receive()

    def _send(self, name: str, **arguments: Any) -> None:
        plain = {k: str(v.absolute()) if isinstance(v, Path) else v for k, v in arguments.items()}
        try:
            os.write(self._requests, messages.encode_line({"do": name, **plain}))
        except BrokenPipeError:
            self._next_line(POLL)  # says how it died

    def _next_line(self, seconds: float) -> bytes | None:
        """Give the answer at hand, after waiting for one for at most `seconds`; it is not taken."""
        if b"\n" in self._pending:
            return self._pending
        if select.select([self._answers], [], [], seconds)[0]:
            chunk = os.read(self._answers, 1 << 20)
            self._pending += chunk
            if not chunk:
                self._raise_death()
        return self._pending if b"\n" in self._pending else None

    def _receive(self) -> Any:
        line, _, self._pending = self._pending.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise _rebuild_error(answer["kind"], answer["error"])
        return answer["ok"]

    def _raise_death(self) -> None:
        if self._child is not None:
            try:
                self._child.wait(CLOSE_GRACE)
            finally:
                self._child.check()
        raise LearnerFailed(f"The learner ended; its log is {self.log}.")

    def _end_child(self, child: Child) -> None:
        try:
            child.wait(CLOSE_GRACE)
        except TimeoutError:
            pass
        finally:
            child.stop()


def _rebuild_error(kind: str, sentence: str) -> LtrainError:
    """Give the learner's error in this process."""
    error_class = getattr(errors, kind, LearnerFailed)
    error: LtrainError = error_class(sentence)
    return error
