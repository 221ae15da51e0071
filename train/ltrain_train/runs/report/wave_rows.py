"""The table of a run's waves, printed row by row as they end."""

from collections.abc import Iterator, Sequence

from ltrain_instrument.quantity import quantity
from ltrain_train.runs.journal import Wave
from ltrain_transforms.recipe import Recipe

EQUAL_REWARDS = frozenset({"no_spread", "superseded"})
"""Drop reasons of a wave in which all rewards within each group are equal."""

NOT_PLAIN = ("continued", "first call")
"""Prompts under `serve.continue_tokens` that need no reason."""
TIMES = {"gen": ("generate",), "data": ("settle", "build"), "train": ("train",), "load": ("load",)}
"""The phases whose seconds each column adds up."""
SWAP = {"swap": ("swap",)}
"""The column of a run in which vLLM and the learner have the GPU in turn."""
MIN_WIDTH = 6
"""Characters of a score."""


class WaveRows:
    """Writes a row for each wave and policy, and a heading where the scores have new names."""

    def __init__(self, recipe: Recipe, *, swaps: bool = False) -> None:
        self._times = TIMES | (SWAP if swaps else {})
        self._rules = [reward.name for reward in recipe.reward if reward.evaluation is None]
        self._names: list[str] = []
        policies = [policy.name for policy in recipe.trained]
        self._policy_width = max(map(len, ("policy", *policies))) if len(policies) > 1 else 0

    def lines(self, wave: Wave) -> Iterator[str]:
        """Yield the heading if it is due, the row, and a line for each note on the wave."""
        names = list(dict.fromkeys((*wave.evaluations, *self._rules, *wave.rules)))
        if not set(names) <= set(self._names):
            self._names = names
            yield from self._headings()
        yield self._row(wave).rstrip()
        yield from wave_notes(wave)

    def _headings(self) -> Iterator[str]:
        """Yield the names of the columns; a long name of a score takes two lines."""
        parts = {name: name.rpartition("-") for name in self._names}
        above = [f"{head}{dash}" for head, dash, _ in parts.values()]
        if any(above):
            yield self._join("", "", "", "", above, [""] * (len(self._times) + 2)).rstrip()
        below = [tail for _, _, tail in parts.values()]
        yield self._join("wave", "policy", "v", "failed", below, ["rows", *self._times, "drift"])

    def _row(self, wave: Wave) -> str:
        failed = wave.rollouts - wave.outcomes.get("ok", 0)
        scores = [f"{wave.scores[name]:.3f}" if name in wave.scores else "" for name in self._names]
        seconds = [
            sum(wave.seconds.get(phase, 0.0) for phase in phases) for phases in self._times.values()
        ]
        drift = wave.metrics.get("drift_k3")
        cells = [
            str(wave.samples or ""),
            *(f"{value:.1f}" if value else "" for value in seconds),
            "" if drift is None else f"{drift:.1g}",
        ]
        name, version = f"{wave.mode} {wave.wave}", str(wave.version)
        return self._join(name, wave.policy, version, str(failed or ""), scores, cells)

    def _join(
        self,
        wave: str,
        policy: str,
        version: str,
        failed: str,
        scores: Sequence[str],
        cells: Sequence[str],
    ) -> str:
        widths = [
            max(MIN_WIDTH, *map(len, (f"{head}{dash}", tail)))
            for head, dash, tail in (name.rpartition("-") for name in self._names)
        ]
        policies = [f"{policy:<{self._policy_width}}"] if self._policy_width else []
        columns = [f"{wave:<8}", *policies, f"{version:>3}", f"{failed:>6}"]
        columns += [f"{score:>{width}}" for score, width in zip(scores, widths, strict=True)]
        columns += [f"{cell:>5}" for cell in cells]
        return " ".join(columns)


def wave_notes(wave: Wave) -> Iterator[str]:
    """Yield what a score is the mean of, why a wave has no new version, and its alarms.

    Under `serve.continue_tokens` a note counts the calls with the plain prompt by reason.
    """
    if wave.mode != "train":
        yield f"  {_describe_score(wave)}"
    if wave.mode == "train" and wave.published is None:
        if wave.undone:
            yield f"  no new version: {quantity(wave.undone, 'optimizer step')} undone"
        else:
            yield f"  nothing to learn: {_why_nothing(wave)}"
    if plain := {name: n for name, n in wave.prompts.items() if name not in NOT_PLAIN}:
        reasons = ", ".join(f"{count} {name}" for name, count in plain.items())
        calls = quantity(sum(wave.prompts.values()), "call")
        yield f"  not continued by tokens: {reasons}, of {calls}"
    yield from (f"  alarm: {sentence}" for sentence in wave.alarms)


def _describe_score(wave: Wave) -> str:
    """Return the rollouts of a held-out score by outcome, their temperature and why some failed."""
    sampled = "" if wave.temperature is None else f" at temperature {wave.temperature:g}"
    left_out = {"infra": " (left out)"}
    kinds = ", ".join(
        f"{count} {outcome}{left_out.get(outcome, '')}"
        for outcome, count in sorted(wave.outcomes.items())
    )
    return f"{quantity(wave.rollouts, 'rollout')}{sampled}: {kinds}. {wave.failures}".rstrip()


def _why_nothing(wave: Wave) -> str:
    """Return why a wave has no row to train on, from its drops and its failed rollouts."""
    others = {name: n for name, n in wave.drops.items() if name not in EQUAL_REWARDS}
    drops = ", ".join(f"{count} {name}" for name, count in sorted(wave.drops.items()))
    why = f"its drops are {drops}" if others else "within each group all rewards are equal"
    return f"{why}. {wave.failures}" if wave.failures else why
