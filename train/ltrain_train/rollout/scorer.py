"""The scorer of the results of a run: the reward and the judges of its program."""

from collections.abc import Mapping
from contextlib import ExitStack
from hashlib import sha256
from typing import Any

from ltrain_train.rollout.program import AgentProgram
from ltrain_train.rollout.rewards import (
    NO_SERVICES,
    LlmJudge,
    RewardLimits,
    RewardSource,
    Score,
    StartCall,
    open_reward,
)
from ltrain_train.rollout.tasks import Task
from ltrain_train.sandboxes import Changes


def open_program_reward(program: AgentProgram, timeout: float) -> RewardSource:
    """Open the reward of a program, which has one, with a limit of `timeout` seconds a call."""
    assert program.reward, "the program has judges"
    limits = RewardLimits(program.reward_concurrency, program.reward_rate)
    return open_reward(program.reward, program.folder, timeout, limits)


class Scorer(ExitStack):
    """Owns the reward and the judges; `score` may run in many threads."""

    def __init__(self, program: AgentProgram) -> None:
        """Open the reward and the judges of a program."""
        super().__init__()
        concurrency, rate = program.reward_concurrency, program.reward_rate
        self.concurrency = concurrency
        self._judges = [
            LlmJudge(name, judge, program.reward_timeout, RewardLimits(concurrency, rate))
            for name, judge in program.judges.items()
        ]
        for judge in self._judges:
            self.callback(judge.close)
        self._reward = None
        if program.reward:
            self._reward = open_program_reward(program, program.reward_timeout)
            self.callback(self._reward.close)

    @property
    def digest(self) -> str:
        """Hash of the known code and of the judges; '' without any."""
        digests = [source.digest for source in (self._reward, *self._judges) if source is not None]
        if len(digests) < 2:
            return "".join(digests)
        return sha256(",".join(digests).encode()).hexdigest()[:16]

    def score(
        self,
        task: Task,
        result: Any,
        start_call: StartCall,
        services: Mapping[str, str] = NO_SERVICES,
        changes: Changes | None = None,
    ) -> dict[str, Score]:
        """Return the values by name; nothing if the run has neither a reward nor a judge.

        Args:
            start_call: starts the span of a judge's call.
            services: addresses of the services that the agent used, by name.
            changes: what the attempt left in its workspace, if it had one.
        """
        reward = self._reward
        values = {} if reward is None else reward.score(task, result, services, changes)
        scores = {name: Score(value) for name, value in values.items()}
        for judge in self._judges:
            scores[judge.name] = judge.score(task, result, start_call)
        return scores
