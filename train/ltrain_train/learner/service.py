"""The learner's process: it reads requests from one pipe and writes answers to another.

* The output of the backend's libraries goes to the process's own output, which is a log file.
* An error is an answer with a message; only the end of the requests ends the process.
* Every process that it starts ends with it.
"""

import os
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

from ltrain_instrument import attributes
from ltrain_instrument.errors import LtrainError
from ltrain_train.errors import LearnerFailed
from ltrain_train.learner.backend import Trainer, find_backend
from ltrain_train.learner.checkpoint import check_base, check_fit
from ltrain_train.learner.objective import decode_objective
from ltrain_train.learner.protocol import VERSIONS, Job, StepReport, decode_job
from ltrain_train.processes import JsonPipes

REQUESTS = (
    *("step", "log_probs", "save", "load", "share", "unshare", "export", "export_adapter"),
    *("move", "select"),
)
"""The requests after `start`, each a method of the trainer."""
PATHS = ("samples", "directory", "checkpoint")
"""The arguments that are paths."""
LEARNER_FAILED = LearnerFailed.__name__


class LearnerService:
    """Answers requests until they end."""

    def __init__(self, requests: int, answers: int) -> None:
        self.pipes = JsonPipes(answers, requests)
        self.provider: TracerProvider | None = None
        self.backend = find_backend()
        self.trainer: Trainer | None = None

    def run(self) -> None:
        """Answer requests until they end, then stop the backend."""
        signal.signal(signal.SIGTERM, _exit_at_once)
        try:
            for request in self.pipes.requests():
                self.pipes.send(self._answer(request))
        finally:
            if self.provider is not None:
                self.provider.shutdown()
            self.backend.stop()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"ok": self._dispatch(request.pop("do"), request)}
        except LtrainError as error:
            return {"error": str(error), "kind": type(error).__name__}
        except Exception as error:  # a backend raises anything; the log has the traceback
            traceback.print_exc()
            reason = self.backend.describe_error(error, self.trainer)
            return {"error": f"The learner failed: {reason}", "kind": LEARNER_FAILED}

    def _dispatch(self, name: str, arguments: dict[str, Any]) -> Any:
        if name == "start":
            return self._start(decode_job(arguments))
        if self.trainer is None:
            raise LearnerFailed(f"The learner cannot {name} before the request 'start'.")
        if name not in REQUESTS:
            raise LearnerFailed(f"The learner has no request '{name}'.")
        for key in PATHS:
            if arguments.get(key) is not None:
                arguments[key] = Path(arguments[key])
        if name == "step":
            arguments["objective"] = decode_objective(arguments["objective"])
            arguments["versions"] = VERSIONS.validate_python(arguments["versions"])
        result = getattr(self.trainer, name)(**arguments)
        return asdict(result) if isinstance(result, StepReport) else result

    def _start(self, job: Job) -> None:
        check_base(job.base)
        if job.reference is not None:
            check_base(job.reference.weights)
        if job.checkpoint is not None:
            check_fit(job.checkpoint, job)
        self.trainer = self.backend.start(job, self._tracer(job))

    def _tracer(self, job: Job) -> Tracer:
        if job.home is None:
            return TracerProvider().get_tracer(attributes.SCOPE_LEARNER)
        from ltrain_train.store import open_service_provider

        self.provider = open_service_provider("ltrain-learner", job.home)
        return self.provider.get_tracer(attributes.SCOPE_LEARNER)


def _exit_at_once(*_: object) -> None:
    os._exit(128 + signal.SIGTERM)


def serve_pipes(arguments: list[str]) -> None:
    """Serve the two pipes whose descriptors are the arguments."""
    requests, answers = (int(number) for number in arguments)
    LearnerService(requests, answers).run()


if __name__ == "__main__":
    serve_pipes(sys.argv[1:])
    for output in (sys.stdout, sys.stderr):
        output.flush()
    os._exit(0)  # Python would release torch's modules one by one, which takes 1.5 s
