"""The learner's process: it reads requests from one pipe and writes answers to another.

* The output of Ray, verl and torch goes to the process's own output, which is a log file.
* An error is an answer with a message; only the end of the requests ends the process.
* Every process that it starts ends with it.
"""

import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import TracerProvider

from ltrain_instrument import attributes
from ltrain_instrument.errors import LtrainError
from ltrain_train.errors import LearnerFailed
from ltrain_train.learner import protocol
from ltrain_train.learner.checkpoint import check_fit
from ltrain_train.learner.device import current_device
from ltrain_train.learner.environment import shared_environment
from ltrain_train.learner.objective import decode_objective
from ltrain_train.learner.protocol import Job, decode_job
from ltrain_train.learner.ranks import cluster
from ltrain_train.learner.ranks.placement import Placement
from ltrain_train.learner.weights import check_base
from ltrain_train.processes import free_port

if TYPE_CHECKING:
    from ltrain_train.learner.learner import Learner


class LearnerService:
    """Answers requests until they end."""

    def __init__(self, requests: int, answers: int) -> None:
        for pipe in (requests, answers):
            os.set_inheritable(pipe, False)  # otherwise Ray's daemons keep it open
        self.requests = open(requests, "rb")  # noqa: SIM115 - open as long as the process runs
        self.answers = open(answers, "wb", buffering=0)  # noqa: SIM115
        self.provider: TracerProvider | None = None
        self.learner: Learner | None = None

    def run(self) -> None:
        """Answer requests until they end, then stop Ray."""
        signal.signal(signal.SIGTERM, _exit_at_once)
        try:
            for line in self.requests:
                self.answers.write(protocol.encode_line(self._answer(json.loads(line))))
        finally:
            if self.provider is not None:
                self.provider.shutdown()
            cluster.stop_ray()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"ok": self._dispatch(request.pop("do"), request)}
        except LtrainError as error:
            return {"error": str(error), "kind": type(error).__name__}
        except Exception as error:  # verl, Ray and torch raise anything; the log has the traceback
            traceback.print_exc()
            ranks = self.learner.group.workers if self.learner else ()
            return {
                "error": f"The learner failed: {cluster.describe_error(error, ranks)}",
                "kind": LEARNER_FAILED,
            }

    def _dispatch(self, name: str, arguments: dict[str, Any]) -> Any:
        if name == "start":
            return self._start(decode_job(arguments))
        learner = self.learner
        if learner is None:
            raise LearnerFailed(f"The learner cannot {name} before the request 'start'.")
        methods: dict[str, Callable[..., Any]] = {
            "step": lambda: asdict(
                learner.step(
                    Path(arguments.pop("samples")),
                    decode_objective(arguments.pop("objective")),
                    **arguments,
                )
            ),
            "log_probs": lambda: learner.log_probs(Path(arguments["samples"]), arguments["kind"]),
            "export": lambda: learner.export(
                Path(arguments["directory"]), dtype=arguments["dtype"]
            ),
            "export_adapter": lambda: learner.export_adapter(Path(arguments["directory"])),
            "save": lambda: learner.save(Path(arguments["directory"])),
            "load": lambda: learner.load(Path(arguments["directory"])),
            "select": lambda: learner.select(
                arguments["policy"],
                arguments["recipe"],
                Path(arguments["checkpoint"]) if arguments["checkpoint"] else None,
            ),
        }
        return methods[name]()

    def _start(self, job: Job) -> None:
        """Start or join Ray if the ranks need it, import verl, then load the model.

        Ray starts before the import: it copies the environment, which verl's import changes.
        """
        check_base(job.base)
        if job.reference is not None:
            check_base(job.reference.weights)
        if job.checkpoint is not None:
            check_fit(job.checkpoint, job)
        placement = _find_placement(job)
        gc.disable()  # searches for cycles of objects take a sixth of this import's time
        learner = import_module(LEARNER_MODULE)
        gc.enable()
        self.learner = learner.Learner(job, placement, self._tracer(job))

    def _tracer(self, job: Job) -> Any:
        if job.home is None:
            return TracerProvider().get_tracer(attributes.SCOPE_LEARNER)
        from ltrain_train.store import open_service_provider

        self.provider = open_service_provider("ltrain-learner", job.home)
        return self.provider.get_tracer(attributes.SCOPE_LEARNER)


def _find_placement(job: Job) -> Placement | None:
    """Start Ray or join the user's cluster, and return where the ranks run.

    None: the only rank on this machine runs in this process, without Ray.
    """
    if job.ray_address is not None:
        device = current_device()
        cluster.join_ray(job.ray_address, shared_environment(device))
        return Placement.reserve(job, device)
    if job.ranks == 1:
        return None
    cluster.start_ray(job.ranks, job.scratch)
    port = free_port()
    cluster.preimport(RANK_MODULE, job.ranks, port)  # while this process imports it too
    return Placement(address=cluster.LOOPBACK, port=port)


LEARNER_MODULE = "ltrain_train.learner.learner"
RANK_MODULE = "ltrain_train.learner.ranks.rank"
LEARNER_FAILED = LearnerFailed.__name__


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
