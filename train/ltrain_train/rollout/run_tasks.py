"""`ltrain rollout`: runs one wave of tasks through an agent, as a run of its own."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ltrain_collector.dsn import Server, parse_dsn
from ltrain_instrument import settings
from ltrain_instrument.identity import Mode
from ltrain_train.gateway import GatewayClient
from ltrain_train.processes import RunLock, run_lock
from ltrain_train.rollout.attempt_log import AttemptLog, end_of
from ltrain_train.rollout.executor import RunnerEnvironment, rollout_logs
from ltrain_train.rollout.failures import describe_failures
from ltrain_train.rollout.other_runners import check_leases
from ltrain_train.rollout.program import AgentProgram
from ltrain_train.rollout.runner import Runner
from ltrain_train.rollout.runs import Run, open_run
from ltrain_train.rollout.tasks import Task, load_tasks, tasks_digest
from ltrain_train.rollout.trial import check_sandboxes
from ltrain_train.store import home_secret, require_own_store
from ltrain_train.workers import COUNTED_OUTCOMES, Outcome, RolloutResult, WaveResult
from ltrain_transforms.ended_rollout import EndedRollout

WAVE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """A run of tasks through a program, as `ltrain rollout` requests it."""

    program: AgentProgram
    tasks: Path
    run: str | None
    """Name of the run; None: the name of the task file."""
    mode: Mode
    rollouts_per_task: int
    temperature: float
    gateway: str
    policy: str


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """The results of `ltrain rollout`."""

    run: Run
    results: WaveResult
    skipped: dict[str, int]
    """Rollouts that an earlier process had finished, by outcome."""
    logs: Path
    """Folder of the logs of workers and commands."""

    @property
    def complete(self) -> bool:
        """Whether every rollout has a counted outcome."""
        return all(result.outcome in COUNTED_OUTCOMES for result in self.results)

    @property
    def succeeded(self) -> bool:
        """Whether every rollout is ok, those that an earlier process had finished included."""
        return not self.failures and self.skipped.keys() <= {Outcome.OK}

    @property
    def failures(self) -> list[EndedRollout]:
        """The rollouts of this process that are not ok."""
        return [end_of(each) for each in self.results if each.outcome is not Outcome.OK]

    def table(self) -> str:
        """Return the summary as a few lines of text."""
        outcomes = _describe_outcomes(self.results.outcomes)
        lines = [f"run {self.run.name}: {outcomes or 'nothing left to do'}"]
        if self.skipped:
            lines.append(f"finished before: {_describe_outcomes(self.skipped)}")
        lines += [f"mean {name}: {value:.3f}" for name, value in self.results.means().items()]
        lines += self._silence_warnings()
        failed = self.failures
        lines += [f"{each.rollout} {each.outcome}: {each.reason}" for each in failed[:5]]
        if len(failed) > 5:
            lines.append(f"and {len(failed) - 5} more that are not ok")
        if failed:
            lines.append(describe_failures(failed, len(self.results), self.logs))
        return "\n".join(lines)

    def _silence_warnings(self) -> Iterator[str]:
        ok = [result for result in self.results if result.outcome is Outcome.OK]
        if count := sum(not result.llm_calls for result in ok):
            yield (
                f"warning: {count} of {len(ok)} ok rollouts never called the model through the "
                "gateway, so there is nothing of them to train on. Send the agent's calls to "
                "OPENAI_BASE_URL with OPENAI_API_KEY; a function has them as llm.base_url and "
                "llm.api_key."
            )

    def as_json(self) -> str:
        """Return the summary as JSON."""
        rollouts = [_flatten(result) for result in self.results]
        fields = {
            "run": self.run.name,
            "skipped": sum(self.skipped.values()),
            "skipped_outcomes": self.skipped,
            "rollouts": rollouts,
        }
        return json.dumps(fields, indent=1)


def run_tasks(options: TaskRun) -> RolloutSummary:
    """Run the tasks; a killed run continues where it stopped.

    Raises:
        RunInUse: when another process works on a run of this name, also on another machine.
        LtrainError: when the tasks cannot be read, or the agent or the gateway cannot be used.
    """
    tasks, home = load_tasks(options.tasks), settings.HOME.read()
    name = options.run or options.tasks.stem
    with run_lock(home, run=name) as lock:
        return _run_locked(options, name, tasks, home, lock)


def _run_locked(
    options: TaskRun, name: str, tasks: list[Task], home: Path, lock: RunLock
) -> RolloutSummary:
    run = open_run(home / "runs", name, _comparable_options(options, tasks))
    log = AttemptLog(run.folder) if run.resumed else None
    finished = _find_finished(run, log)
    check_sandboxes(options.program, tasks)
    secret = home_secret(home)
    require_own_store(home)
    with closing(GatewayClient(options.gateway, secret)) as client:
        client.require_running()
    environment = RunnerEnvironment(
        run=run.name,
        home=home,
        gateway=options.gateway,
        secret=secret,
        policy=options.policy,
        keep_open=lock.descriptors,
    )
    with run.working(), Runner(options.program, environment, log) as runner, lock.working():
        results = runner.run(
            options.mode,
            WAVE,
            tasks,
            options.rollouts_per_task,
            sampling=_sampling(options),
            finished=finished,
            on_result=_progress_printer(len(tasks) * options.rollouts_per_task - len(finished)),
        )
    skipped = dict(sorted(Counter(finished.values()).items()))
    summary = RolloutSummary(run, results, skipped, rollout_logs(home))
    run.finished = summary.complete
    run.save()
    return summary


def _comparable_options(options: TaskRun, tasks: list[Task]) -> dict[str, str | int | float]:
    """Return the options that identify a request: an unfinished run continues if they are equal."""
    program = options.program
    return {
        "tasks": tasks_digest(tasks),
        "agent": program.agent or "",
        "reward": program.reward or "",
        "mode": options.mode,
        "per_task": options.rollouts_per_task,
        "temperature": options.temperature,
        "policy": options.policy,
        "agent_sees": ",".join(program.agent_sees),
        "allow": ",".join(program.allow),
    }


def _find_finished(run: Run, log: AttemptLog | None) -> dict[str, str]:
    """Return the outcomes of the rollouts that an earlier process finished, by rollout id."""
    if log or _is_store_shared():  # to import the store takes a second
        check_leases(None, run.name, log, rename="with --run")
    return {name: each.outcome for name, each in log.finished.items()} if log else {}


def _is_store_shared() -> bool:
    """Return whether runners on other machines may write to the store."""
    dsn = settings.STORE.read()
    return bool(dsn) and isinstance(parse_dsn(dsn), Server)


def _describe_outcomes(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in outcomes.items())


def _sampling(options: TaskRun) -> dict[str, float]:
    """Return the sampling that the gateway imposes; it sets the parameters that are not named."""
    return {"temperature": options.temperature} if options.mode == "train" else {}


def _progress_printer(total: int) -> Any:
    count = 0

    def on_result(result: RolloutResult) -> None:
        nonlocal count
        count += 1
        print(f"\r{count}/{total} rollouts", end="", file=sys.stderr, flush=True)
        if count == total:
            print(file=sys.stderr)

    return on_result if sys.stderr.isatty() else None


def _flatten(result: RolloutResult) -> dict[str, Any]:
    fields = asdict(result)
    return {**fields.pop("identity"), **fields}
