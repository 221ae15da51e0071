"""The trial of a program before its run: its agent and its reward, where they run later.

No model, store or gateway is needed. The agent's process records nothing.
"""

import queue
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Self

from ltrain_train import workers
from ltrain_train.rollout.executor import rollout_logs
from ltrain_train.rollout.program import AgentProgram
from ltrain_train.rollout.runner import START_TIMEOUT
from ltrain_train.rollout.scorer import Scorer
from ltrain_train.workers import AgentProcesses, AttemptResult, Executor

UNRECORDED = {"OTEL_SDK_DISABLED": "true"}
"""Variables of the agent's process: a trial writes no span."""


class Trial(ExitStack):
    """One process of a program's agent; use it in a `with` block, which starts the process."""

    def __init__(self, program: AgentProgram, home: Path) -> None:
        super().__init__()
        self.program = replace(program, folder=program.folder.resolve())
        self._home = home
        self._results: queue.SimpleQueue[AttemptResult] = queue.SimpleQueue()
        self._executor: Executor

    def __enter__(self) -> Self:
        program, python = self.program, self.program.interpreter
        assert program.agent is not None, "remote workers have the agent"
        processes = AgentProcesses(
            agent=program.agent, folder=program.folder, workers=1, python=python,
            environ={**program.environment(self._home, python), **UNRECORDED},
            logs=rollout_logs(self._home) / "trial",
        )  # fmt: skip
        executor = workers.open_executor(processes, lambda _, result: self._results.put(result))
        self._executor = self.enter_context(closing(executor))
        return self

    def import_agent(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until the process has imported the agent; a command is not imported.

        Raises:
            BadReference: when there is no such function, or its module raises.
            WorkerFailed: when the process ends, or the import takes longer than `timeout` seconds.
        """
        self._executor.wait_ready(timeout)


def import_program(program: AgentProgram, home: Path) -> None:
    """Import the agent, in a process of its own, and the reward.

    Raises:
        BadInterpreter: when the program's Python cannot run the agent.
        BadReference: when the agent or the reward cannot be imported.
        WorkerFailed: when the agent's process ends during the import.
    """
    with ExitStack() as stack:
        is_function = program.is_function
        trial = stack.enter_context(Trial(program, home)) if is_function else None
        stack.enter_context(Scorer(replace(program, folder=program.folder.resolve(), judges={})))
        if trial is not None:
            trial.import_agent()
