"""The learner's process: it reads requests from one pipe and answers on another.

* Whatever Ray, verl and torch print goes to the process's own output, which is a log file.
* An error is an answer, a sentence; only the end of the requests ends the process.
* Nothing it starts outlives it.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import TracerProvider

from ltrain_instrument import attributes
from ltrain_instrument.errors import LtrainError
from ltrain_train.learner import cluster, messages
from ltrain_train.learner.checkpoint import fingerprint, read_record, record
from ltrain_train.learner.errors import LearnerFailed
from ltrain_train.learner.messages import Job
from ltrain_train.learner.weights import check_base

if TYPE_CHECKING:
    from ltrain_train.learner.learner import Learner


class Service:
    """Answers requests until there are no more."""

    def __init__(self, requests: int, answers: int) -> None:
        for pipe in (requests, answers):
            os.set_inheritable(pipe, False)  # or Ray's daemons would hold them open
        self.requests = open(requests, "rb")  # noqa: SIM115 - as long as the process
        self.answers = open(answers, "wb", buffering=0)  # noqa: SIM115
        self.provider: TracerProvider | None = None
        self.learner: Learner | None = None

    def run(self) -> None:
        signal.signal(signal.SIGTERM, _end_at_once)
        try:
            for line in self.requests:
                self.answers.write(messages.line(self._answer(json.loads(line))))
        finally:
            if self.provider is not None:
                self.provider.shutdown()
            cluster.stop()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"ok": self._do(request.pop("do"), request)}
        except LtrainError as error:
            return {"error": str(error), "kind": type(error).__name__}
        except Exception as error:  # verl, Ray and torch raise anything; the log has the traceback
            traceback.print_exc()
            return {"error": f"The learner failed: {cluster.sentence(error)}", "kind": FAILED}

    def _do(self, name: str, given: dict[str, Any]) -> Any:
        if name == "start":
            return self._start(Job.decode(given))
        learner = self.learner
        if learner is None:
            raise LearnerFailed("The learner was asked to work before it was started.")
        work: dict[str, Callable[..., Any]] = {
            "step": lambda: asdict(learner.step(Path(given.pop("samples")), **given)),
            "log_probs": lambda: learner.log_probs(Path(given["samples"])),
            "export": lambda: learner.export(Path(given["directory"]), dtype=given["dtype"]),
            "save": lambda: learner.save(Path(given["directory"])),
            "load": lambda: learner.load(Path(given["directory"])),
        }
        return work[name]()

    def _start(self, job: Job) -> None:
        """Start Ray and, at the same time, import verl; then load the model."""
        check_base(job.base)
        if job.checkpoint is not None:
            read_record(job.checkpoint, record(job, fingerprint(job.base)))
        with ThreadPoolExecutor(1) as pool:
            importing = pool.submit(import_module, LEARNER)
            cluster.start(cpus=job.ranks)
            port = cluster.free_port()
            cluster.warm(ENGINE, job.ranks, port)
            learner = importing.result().Learner
        self.learner = learner(job, port, self._tracer(job))

    def _tracer(self, job: Job) -> Any:
        if job.home is None:
            return TracerProvider().get_tracer(attributes.SCOPE_LEARNER)
        from ltrain_train.service_key import open_service

        self.provider = open_service("ltrain-learner", job.home)
        return self.provider.get_tracer(attributes.SCOPE_LEARNER)


LEARNER = "ltrain_train.learner.learner"
ENGINE = "ltrain_train.learner.engine"
FAILED = LearnerFailed.__name__


def _end_at_once(*_: object) -> None:
    cluster.remove_directory()
    os._exit(128 + signal.SIGTERM)


def main(arguments: list[str]) -> None:
    """Serve the pipes whose numbers are given."""
    requests, answers = (int(number) for number in arguments)
    Service(requests, answers).run()


if __name__ == "__main__":
    main(sys.argv[1:])
