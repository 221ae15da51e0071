"""The printed report of a run: its start, the time of each phase, its result and what is next."""

import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ltrain_instrument import settings
from ltrain_instrument.addresses import UI, find_address
from ltrain_instrument.privacy import remove_url_credentials
from ltrain_instrument.quantity import quantity
from ltrain_train.runs.journal import Journal, Phase, Wave
from ltrain_train.runs.report.timeline import END, START, split_time
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.scores import mean, mean_interval, paired_differences

PHASES = ("generate", "train", "load", "swap", "build", "settle")

ENGINE_PHASES = ("generate", "train", "load")
"""Phases that sample tokens, train the policy, or write and load weights."""


def describe_start(
    journal: Journal, recipe: Recipe, tasks: int, validation: int, test: int = 0
) -> str:
    """Return a sentence that says where a run starts or goes on, and what it does.

    Args:
        tasks: number of tasks.
        validation: number of held-out tasks.
        test: number of test tasks.
    """
    updates = recipe.train.updates
    version = ", ".join(f"{policy}@{latest}" for policy, latest in journal.latest.items())
    if journal.waves:
        done = f"update {journal.updates} of {updates}"
        return f"Run {journal.run} goes on after {done}, from {version}."
    rollout = recipe.rollout
    wave = (
        f" of {quantity(min(tasks, rollout.tasks_per_wave), 'task')}, "
        f"{quantity(rollout.rollouts_per_task, 'rollout')} each"
        if rollout
        else ""
    )
    held_out = quantity(validation, "held-out task") if validation else "no held-out tasks"
    others = f"; {held_out}" + (f"; {quantity(test, 'test task')}" if test else "")
    what = f"{quantity(updates, 'update')}{wave}{others}"
    return f"Run {journal.run} starts from {version}: {what}."


def describe_places(home: Path, store: str, gateway: str) -> str:
    """Return a sentence that says where the files, the store and the gateway of a run are."""
    return f"Files: {home}; store: {remove_url_credentials(store)}; gateway: {gateway}."


def time_left(waves: Sequence[Wave], updates: int) -> str:
    """Return how long the updates after the second one take if each takes as long as it did.

    The first one is longer: it compiles, and fills caches.

    Args:
        waves: the waves of this process.
        updates: number of updates of the run.

    Returns:
        '' after other waves, or if less than a minute is left.
    """
    trained = [wave for wave in waves if wave.mode == "train"]
    policies = len({wave.policy for wave in trained})
    if not trained or len(trained) != 2 * policies or waves[-1] is not trained[-1]:
        return ""
    seconds = sum(sum(wave.seconds.values()) for wave in trained[-policies:])
    minutes = (updates - trained[-1].wave - 1) * seconds / 60
    return f"About {quantity(round(minutes), 'minute')} left." if minutes >= 1 else ""


def held_out_scores(journal: Journal) -> Iterator[str]:
    """Yield each policy's first and last score on held-out tasks, and the paired difference."""
    for policy in journal.policies:
        waves = [w for w in journal.of(policy).waves if w.mode == "val" and w.tasks]
        of_policy = f" for '{policy}'" if len(journal.policies) > 1 else ""
        if waves:
            yield from _compare(waves[0], waves[-1], of_policy)
            yield from _describe_efficiency(journal, policy, of_policy)


def test_scores(journal: Journal) -> Iterator[str]:
    """Yield a sentence for each policy: its first and its served version on the test tasks."""
    for policy in journal.policies:
        own = journal.of(policy)
        waves = [wave for wave in own.waves if wave.mode == "test" and wave.tasks]
        of_policy = f" for '{policy}'" if len(journal.policies) > 1 else ""
        if waves:
            first = waves[0]
            last = next((w for w in reversed(waves) if w.version == own.served), first)
            what = f"Test tasks{of_policy}: {_score(first)}"
            yield (
                f"{what}; the version did not change."
                if last is first
                else (f"{what}, then {_score(last)}{_describe_difference('; the ', first, last)}.")
            )


def _compare(first: Wave, last: Wave, of_policy: str) -> Iterator[str]:
    yield f"Held-out tasks{of_policy}: {_score(first)}" + (
        f", then {_score(last)}." if last is not first else "."
    )
    if last is not first and (difference := _describe_difference("The ", first, last)):
        yield f"{difference}."


def _describe_difference(begin: str, first: Wave, last: Wave) -> str:
    """Return the paired difference between two waves, after `begin`; '' if they share no task."""
    differences = list(paired_differences(first.tasks, last.tasks).values())
    average = mean(differences)
    if average is None:
        return ""
    what = f"{begin}difference is {average:+.3f}"
    if interval := mean_interval(differences):
        return f"{what} {interval}; intervals are of 95 %, over tasks"
    if len(differences) == 1:
        return f"{what} on the only task, so it has no interval"
    return f"{what}, the same on every task, so it has no interval"


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The learning speed of a policy: Forge's J, throughput times sample efficiency."""

    throughput: float
    """Trained tokens a second."""
    sample_efficiency: float
    """Gain of the score on held-out tasks for each trained token."""

    @property
    def gain_per_hour(self) -> float:
        """Their product, for an hour."""
        return self.throughput * self.sample_efficiency * 3600


def measure_efficiency(journal: Journal, policy: str) -> Efficiency | None:
    """Return how fast a policy learned from the first validation to the last.

    Return None without two scores on held-out tasks and a trained token between them.
    """
    waves = journal.of(policy).waves
    scored = [n for n, wave in enumerate(waves) if wave.mode == "val" and wave.score is not None]
    between = waves[scored[0] : scored[-1]] if scored else []
    trained = [wave for wave in between if wave.mode == "train"]
    tokens = sum(wave.tokens for wave in trained)
    of_all = (each for wave in trained for each in journal.waves_of("train", wave.wave))
    seconds = sum(sum(wave.seconds.values()) for wave in of_all)
    if not tokens or not seconds:
        return None
    gain = (waves[scored[-1]].score or 0.0) - (waves[scored[0]].score or 0.0)
    return Efficiency(tokens / seconds, gain / tokens)


def _describe_efficiency(journal: Journal, policy: str, of_policy: str) -> Iterator[str]:
    if efficiency := measure_efficiency(journal, policy):
        yield (
            f"J{of_policy} = {efficiency.throughput:.0f} trained tokens/s x "
            f"{efficiency.sample_efficiency * 1e6:+.3g} score per million tokens = "
            f"{efficiency.gain_per_hour:+.2f} score per hour of waves."
        )


def _score(wave: Wave) -> str:
    scores = list(wave.tasks.values())
    interval = mean_interval(scores)
    kinds = [f"{n} {outcome}" for outcome, n in sorted(wave.outcomes.items()) if outcome != "ok"]
    failed = f" ({', '.join(kinds)} of {wave.rollouts} rollouts)" if kinds else ""
    return f"{mean(scores):.3f}{f' {interval}' if interval else ''} with v{wave.version}{failed}"


def next_commands(journal: Journal, serve: Sequence[str]) -> Iterator[str]:
    """Yield what to do after a run, as commands.

    Args:
        serve: the arguments of `ltrain serve` that the recipe sets.
    """
    home = os.environ.get(settings.HOME.name)
    prefix = f"{settings.HOME.name}={shlex.quote(home)} " if home else ""
    yield "Next:"
    yield f"  {prefix}ltrain show {shlex.quote(f'run:{journal.run}')} --html run.html"
    if url := find_address(settings.HOME.read(), UI, ("ui",)):
        yield f"  {url}   # `ltrain ui` runs there: the same and each rollout"
    else:
        yield f"  {prefix}ltrain ui   # the same and each rollout, in a browser"
    names = [part for policy in journal.policies for part in ("--policy", policy)]
    command = shlex.join(["ltrain", "serve", *names, *serve])
    versions = ", ".join(f"{policy}@{journal.of(policy).served}" for policy in journal.policies)
    yield f"  {prefix}{command}   # serves {versions}"


def time_spent(waves: Iterable[Wave], began: float, ended: float) -> str:
    """Return the seconds of each phase of the waves, and the share without an engine.

    Args:
        waves: those of one process.
        began, ended: Unix times of that process.
    """
    phases = [phase for wave in waves for phase in wave.phases]
    total: dict[str, float] = defaultdict(float)
    for phase in phases:
        total[phase.name] += phase.ended - phase.began
    wall = ended - began
    seconds = split_time(phases, PHASES, began, ended)
    start_and_end = seconds.get(START, 0.0) + seconds.get(END, 0.0)
    parts = [f"start and end {start_and_end:.0f} s"]
    parts += [f"{name} {total[name]:.0f} s" for name in PHASES if name in total]
    return (
        f"{wall:.0f} s: {', '.join(parts)}. "
        f"No generation, training or weight load in {idle_share(phases, began, ended):.0%} of it."
    )


def idle_share(phases: Iterable[Phase], began: float, ended: float) -> float:
    """Return the share of the time without a working engine."""
    seconds = split_time(phases, ENGINE_PHASES, began, ended)
    busy = sum(seconds.get(name, 0.0) for name in ENGINE_PHASES)
    return 1.0 - busy / (ended - began) if ended > began else 0.0
