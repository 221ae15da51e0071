"""`ltrain rollout`: one wave of tasks through an agent, as a run of its own."""

import json
import sys
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ltrain_instrument import settings
from ltrain_instrument.allow import Allow
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.identity import Mode
from ltrain_train.gateway.client import GatewayClient, GatewayUnreachable
from ltrain_train.gateway.keys import gateway_secret
from ltrain_train.lock import RunLock, run_lock
from ltrain_train.rollout.attempt import COUNTING, RolloutResult, WaveResult
from ltrain_train.rollout.ledger import Ledger
from ltrain_train.rollout.runner import Runner, finished
from ltrain_train.rollout.runs import Run, open_run
from ltrain_train.rollout.tasks import Task, digest, load_tasks
from ltrain_train.service_key import check_store

WAVE = 0
IMPOSED = {"top_p": 1.0}
"""In mode `train`, beside the temperature: the policy itself is sampled, nothing cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """What a user asks `ltrain rollout` for."""

    tasks: Path
    agent: str
    reward: str | None
    run: str | None
    mode: Mode
    per_task: int
    temperature: float
    gateway: str
    policy: str
    workers: int
    concurrency: int
    deadline: float
    agent_sees: tuple[str, ...]
    allow: tuple[Allow, ...]


@dataclass(frozen=True, slots=True)
class Driven:
    """What came of it."""

    run: Run
    results: WaveResult
    skipped: int
    """Rollouts that an earlier process had finished."""

    @property
    def complete(self) -> bool:
        return all(result.outcome in COUNTING for result in self.results)

    def table(self) -> str:
        """Return it as a few lines."""
        outcomes = ", ".join(f"{count} {name}" for name, count in self.results.outcomes.items())
        lines = [f"run {self.run.name}: {outcomes or 'nothing left to do'}"]
        if self.skipped:
            lines.append(f"finished before: {self.skipped}")
        lines += [f"mean {name}: {value:.3f}" for name, value in self.results.means().items()]
        failed = [result for result in self.results if result.reason]
        lines += [f"{r.identity.rollout} {r.outcome.value}: {r.reason}" for r in failed[:5]]
        if len(failed) > 5:
            lines.append(f"and {len(failed) - 5} more that are not ok")
        return "\n".join(lines)

    def as_json(self) -> str:
        """Return it as JSON."""
        rollouts = [_flat(result) for result in self.results]
        said = {"run": self.run.name, "skipped": self.skipped, "rollouts": rollouts}
        return json.dumps(said, indent=1)


def drive(asked: Drive) -> Driven:
    """Run the tasks; a run that was killed goes on where it was.

    Raises:
        RunInUse: when another process works on a run of this name.
        LtrainError: when the tasks, the agent or the gateway are not what they must be.
    """
    tasks, home = load_tasks(asked.tasks), settings.HOME.read()
    name = asked.run or asked.tasks.stem
    with run_lock(home, run=name) as lock:
        return _drive(asked, name, tasks, home, lock)


def _drive(asked: Drive, name: str, tasks: list[Task], home: Path, lock: RunLock) -> Driven:
    run = open_run(home / "runs", name, _asked(asked, tasks))
    done = _finished(home, run, asked.mode) if run.resumed else set()
    secret = gateway_secret(home)
    _check_gateway(asked.gateway, secret)
    check_store(home)
    run.save()
    with (
        Runner(
            run=run.name,
            agent=asked.agent,
            reward=asked.reward,
            folder=Path.cwd(),
            gateway=asked.gateway,
            secret=secret,
            policy=asked.policy,
            home=home,
            workers=asked.workers,
            concurrency=asked.concurrency,
            deadline=asked.deadline,
            agent_sees=asked.agent_sees,
            allow=asked.allow,
            held=lock.descriptors,
        ) as runner,
        lock.working(),
    ):
        results = runner.run(
            asked.mode,
            WAVE,
            tasks,
            asked.per_task,
            sampling=_sampling(asked),
            finished=done,
            seen=_progress(len(tasks) * asked.per_task - len(done)),
        )
    driven = Driven(run, results, len(done))
    run.finished = driven.complete
    run.save()
    return driven


def _asked(asked: Drive, tasks: list[Task]) -> dict[str, str | int | float]:
    """Return what makes two calls ask for the same rollouts."""
    return {
        "tasks": digest(tasks),
        "agent": asked.agent,
        "reward": asked.reward or "",
        "mode": asked.mode,
        "per_task": asked.per_task,
        "temperature": asked.temperature,
        "policy": asked.policy,
        "agent_sees": ",".join(asked.agent_sees),
        "allow": ",".join(asked.allow),
    }


def _finished(home: Path, run: Run, mode: Mode) -> set[str]:
    """Ask the run's ledger, and the store where one answers."""
    done = set(Ledger(run.folder).finished)
    from ltrain_collector.store import Store  # costs a second, which a new run need not pay

    with suppress(LtrainError), Store.open() as store:
        done |= finished(store, run.name, mode, WAVE)
    return done


def _sampling(asked: Drive) -> dict[str, float]:
    return {**IMPOSED, "temperature": asked.temperature} if asked.mode == "train" else {}


def _check_gateway(url: str, secret: str) -> None:
    with closing(GatewayClient(url, secret)) as client:
        answers = client.health()
    if not answers:
        raise GatewayUnreachable(
            f"No gateway answers at {url}. Start one with `ltrain serve MODEL`, or name it with "
            "--gateway or LTRAIN_GATEWAY."
        )


def _progress(total: int) -> Any:
    shown = 0

    def seen(result: RolloutResult) -> None:
        nonlocal shown
        shown += 1
        print(f"\r{shown}/{total} rollouts", end="", file=sys.stderr, flush=True)
        if shown == total:
            print(file=sys.stderr)

    return seen if sys.stderr.isatty() else None


def _flat(result: RolloutResult) -> dict[str, Any]:
    said = asdict(result)
    return {**said.pop("identity"), **said}
