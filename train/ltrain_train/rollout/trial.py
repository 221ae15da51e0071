"""The trial of a program before its run: its agent and its reward, where they run later.

No model, store or gateway is needed. The agent's process records nothing.
"""

import queue
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any, Self

from ltrain_instrument.identity import Identity
from ltrain_train import workers
from ltrain_train.policy import Policies, current_prompts
from ltrain_train.rollout.executor import rollout_logs
from ltrain_train.rollout.program import AgentProgram
from ltrain_train.rollout.rewards import RewardFailed
from ltrain_train.rollout.runner import START_TIMEOUT
from ltrain_train.rollout.scorer import open_program_reward
from ltrain_train.rollout.tasks import Task
from ltrain_train.sandboxes import check_sandbox
from ltrain_train.workers import (
    AgentProcesses,
    Attempt,
    AttemptResult,
    BadReference,
    Endpoint,
    Executor,
    Outcome,
    find_python,
)

UNRECORDED = {"OTEL_SDK_DISABLED": "true"}
"""Variables of the agent's process: a trial writes no span."""


class Trial(ExitStack):
    """One process of a program's agent; use it in a `with` block, which starts the process."""

    def __init__(self, program: AgentProgram, home: Path) -> None:
        super().__init__()
        self.program = _with_whole_path(program)
        self._home = home
        self._results: queue.SimpleQueue[AttemptResult] = queue.SimpleQueue()
        self._executor: Executor

    def __enter__(self) -> Self:
        program, python = self.program, self.program.interpreter
        assert program.agent is not None, "remote workers have the agent"
        processes = AgentProcesses(
            agent=program.agent, folder=program.folder, workers=1, python=python,
            environ={**program.environment(self._home, python), **UNRECORDED},
            logs=rollout_logs(self._home) / "trial", sandbox=program.sandbox,
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

    def run(self, task: Task, url: str, policy: str, timeout: float) -> AttemptResult:
        """Run the agent on a task, for at most `timeout` seconds.

        Args:
            url: the address of the model, as an agent gets it.
            policy: the name of the model.
        """
        identity = Identity(
            run="trial", task=task.id, domain=task.domain, wave=0, sample=0, rollout="trial",
            attempt=1, mode="train",
        )  # fmt: skip
        attempt = Attempt(
            identity=identity,
            task=task.visible_fields(self.program.agent_sees),
            endpoint=Endpoint(url, "trial", policy),
            traceparent=f"00-{1:032x}-{1:016x}-00",
            started=time.time_ns(),
            timeout=timeout,
            prompts=current_prompts(Policies(self._home)),
        )
        self._executor.submit(attempt)
        try:
            return self._results.get(timeout=timeout)
        except queue.Empty:
            self._executor.time_out([attempt.id])
        return AttemptResult(Outcome.TIMEOUT, f"still running after {timeout:g} s")


def score_results(
    program: AgentProgram, task: Task, results: Sequence[Any], timeout: float
) -> list[dict[str, float] | RewardFailed]:
    """Return the values that the reward of a program gives each result, or its failure.

    Raises:
        BadReference: when the reward cannot be imported.
    """
    program = _with_whole_path(program)
    with closing(open_program_reward(program, min(timeout, program.reward_timeout))) as reward:

        def score(result: Any) -> dict[str, float] | RewardFailed:
            try:
                return reward.score(task, result)
            except RewardFailed as error:
                return error

        with ThreadPoolExecutor(len(results)) as pool:
            return list(pool.map(score, results))


def import_program(program: AgentProgram, home: Path, tasks: Iterable[Task]) -> None:
    """Import the agent, in a process of its own, and the reward; check the sandboxes of the tasks.

    Raises:
        SandboxUnavailable: when no sandbox can be started.
        BadWorkspace: when the workspace of a task cannot be used.
        BadInterpreter: when the program's Python cannot run the agent.
        BadReference: when the agent or the reward cannot be imported.
        WorkerFailed: when the agent's process ends during the import.
    """
    find_python(program.python, program.folder)
    if program.agent is not None and not program.is_function:
        _require_program(program.agent, program.folder)
    check_sandboxes(program, tasks)
    with ExitStack() as stack:
        trial = stack.enter_context(Trial(program, home)) if program.is_function else None
        if program.reward is not None:
            open_program_reward(_with_whole_path(program), program.reward_timeout).close()
        if trial is not None:
            trial.import_agent()


def check_sandboxes(program: AgentProgram, tasks: Iterable[Task]) -> None:
    """Check that each task's attempts can run in the program's sandbox, if it has one.

    Raises:
        SandboxUnavailable: when no sandbox can be started.
        BadWorkspace: when the workspace of a task cannot be used.
    """
    if program.sandbox is not None:
        fields = [task.visible_fields(program.agent_sees) for task in tasks]
        check_sandbox(program.sandbox, fields)


def _require_program(command: str, folder: Path) -> None:
    """Check that a command of one word names a program."""
    word = command.strip()
    if " " not in word and which(word) is None and which(folder / word) is None:
        raise BadReference(
            f"'{word}' is not an agent: neither module:function nor a program. Write a function "
            "as in agent:solve."
        )


def _with_whole_path(program: AgentProgram) -> AgentProgram:
    return replace(program, folder=program.folder.resolve())
