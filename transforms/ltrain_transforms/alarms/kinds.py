"""The kinds of alarms by name. Each is a function that yields the alarms of the latest wave.

The thresholds are calibrated on runs that learnt their task (`docs/alarms.md`). A policy that
learns may become longer, repeat itself or leave a tool, so these alarms need a run that stalls.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import mean, median

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.alarms.alarm import Alarm, AlarmKind
from ltrain_transforms.alarms.figures import SCORE_DIGITS, WaveFigures

Waves = Sequence[WaveFigures]

WINDOW = 6
"""Waves in a row of a trend: by chance a figure rises in all of them once in 720 times."""
HALF = WINDOW // 2
"""Waves of which a mean is compared; as many at the start of a run are its usual behaviour."""
MIN_RISE = 1e-6
"""Smallest rise between two waves; the contributions of a potential have a constant sum."""
SOLVED = 0.8
"""Place of the mean outcome between the run's lowest (0) and best (1) from which it is solved."""
FALL = 0.5
"""An outcome of at most this share of the run's best has fallen."""
ONE_SCORE = 0.9
"""Share of rollouts with one outcome that is nearly all."""
MIN_OUTCOMES = 16
"""Fewest rollouts with an outcome: in a smaller wave few distinct outcomes are usual."""
FLAT_GROUPS = 0.6
"""Share of groups without spread that is too large."""
FEW_ANSWERS = 0.2
"""Share of distinct answers that is too small, if it is also below half of the usual one."""
LONGER = 2.0
"""Ratio of lengths that is a drift."""
USED = 0.05
"""Calls of a tool in a rollout from which the tool is in use."""
LOST = 0.2
"""Share of rollouts lost for one reason that is too large."""
SLOW = {
    "infra": "the model server, the machine or a service failed or was too slow. Lower "
    "rollout.concurrency, or raise rollout.wall_timeout",
    "incomplete": "spans of ltrain's own processes had not arrived. Raise train.span_timeout, or "
    "free the machine",
}
"""Causes of the drops of rollouts that an agent cannot cause, and their remedies."""
STALE = 0.05
"""Share of rollouts left out as stale that is too large."""
MIN_DRIFT = 0.01
"""Smallest drift for an alarm: SmolLM2-135M in bfloat16 has up to 0.0055."""
MIN_DRIFT_TOKENS = 256
"""Fewest tokens of a drift: in a smaller sample a few tokens decide."""
DRIFT_RATIO = 4.0
"""Ratio of a drift to the median of the waves before that is unusual."""


def _divergence(waves: Waves) -> Iterator[Alarm]:
    judged = [wave for wave in waves if wave.outcome is not None]
    window = judged[-WINDOW:]
    if len(window) < WINDOW or window[-1] is not waves[-1] or _is_solved(waves, window[-HALF:]):
        return
    earlier, later = _outcome(window[:HALF]), _outcome(window[HALF:])
    if later > earlier:
        return
    first, last = window[0].wave, window[-1].wave
    for what, means in _rising(window):
        for name, (before, after) in means.items():
            yield Alarm(
                "divergence",
                last,
                f"wave {last}: `{name}` rose in every wave since {first} (mean {before:.2f} to "
                f"{after:.2f}) while the outcome did not (mean {earlier:.2f} to {later:.2f}): the "
                f"policy may farm {what}; see docs/alarms.md",
                name,
                first,
            )


def _rising(window: Waves) -> Iterator[tuple[str, dict[str, tuple[float, float]]]]:
    """Yield the first and the last mean of each rule and evaluation that rises in every wave."""
    for what, rows in (
        ("the rule", [wave.rules for wave in window]),
        ("what it measures", [wave.others for wave in window]),
    ):
        names = sorted({name for row in rows for name in row})
        values = {name: [row.get(name, 0.0) for row in rows] for name in names}
        yield (
            what,
            {
                name: (means[0], means[-1])
                for name, means in values.items()
                if all(after - before > MIN_RISE for before, after in pairwise(means))
            },
        )


def _one_score(waves: Waves) -> Iterator[Alarm]:
    latest, bounds = waves[-1], _bounds(waves)
    value, share = latest.commonest, latest.commonest_share
    if value is None or share is None or bounds is None:
        return
    if latest.outcomes < MIN_OUTCOMES or share < ONE_SCORE:
        return
    lowest, best = (round(bound, SCORE_DIGITS) for bound in bounds)
    # the lowest outcome of several is that of a failure, which a hard task has nearly always
    is_partial = lowest < value < best or (0 < value < latest.full_outcome and value == best)
    if is_partial:
        yield Alarm(
            "one_score",
            latest.wave,
            f"wave {latest.wave}: {round(share * latest.outcomes)} of {latest.outcomes} rollouts "
            f"have the outcome {value:g}, and the best is {max(best, latest.full_outcome):g}: the "
            "policy may farm a partial reward",
            str(value),
        )


def _no_spread(waves: Waves) -> Iterator[Alarm]:
    window = waves[-WINDOW:]
    shares = _values(window, lambda wave: wave.without_spread)
    if len(shares) < WINDOW or min(shares) <= FLAT_GROUPS or _is_solved(waves, window):
        return
    # without an outcome nothing tells whether the task is solved; a comparison with NaN is false
    if not _outcome(window[HALF:]) <= _outcome(window[:HALF]):
        return
    first, last = window[0].wave, window[-1].wave
    yield Alarm(
        "no_spread",
        last,
        f"wave {last}: {min(shares):.0%} to {max(shares):.0%} of the groups of each wave since "
        f"{first} have rollouts with equal rewards only (outcome {_outcome(window):.2f}): they "
        "train nothing; choose easier or harder tasks, or more rollouts for each",
        since=first,
    )


def _few_answers(waves: Waves) -> Iterator[Alarm]:
    usual, latest = _usual_and_latest(waves, lambda wave: wave.distinct_answers)
    if not latest or max(latest) >= min(FEW_ANSWERS, mean(usual) / 2) or not _stalls(waves):
        return
    first, last = waves[-HALF].wave, waves[-1].wave
    yield Alarm(
        "few_answers",
        last,
        f"wave {last}: since {first} the distinct answers are {max(latest):.0%} of the rollouts or "
        f"fewer ({mean(usual):.0%} in the first waves) while the outcome is "
        f"{_outcome(waves[-HALF:]):.2f}: the policy may repeat one answer",
        since=first,
    )


def _length_drift(waves: Waves) -> Iterator[Alarm]:
    usual, latest = _usual_and_latest(waves, lambda wave: wave.response_tokens)
    if not latest or not (usually := mean(usual)) or not _stalls(waves):
        return
    longer = min(latest) > LONGER * usually
    if not longer and max(latest) >= usually / LONGER:
        return
    first, last = waves[-HALF].wave, waves[-1].wave
    yield Alarm(
        "length_drift",
        last,
        f"wave {last}: since {first} a rollout has {mean(latest):.1f} generated tokens, "
        f"{'more than twice' if longer else 'less than half of'} the {usually:.1f} of the first "
        f"waves, while the outcome is {_outcome(waves[-HALF:]):.2f}",
        "longer" if longer else "shorter",
        first,
    )


def _silent_tool(waves: Waves) -> Iterator[Alarm]:
    if len(waves) < WINDOW or not _stalls(waves):
        return
    first, last = waves[-HALF].wave, waves[-1].wave
    for tool in sorted(waves[0].tools):
        uses = [wave.tools.get(tool, 0.0) for wave in waves]
        if min(uses[:HALF]) >= USED and not any(uses[-HALF:]):
            yield Alarm(
                "silent_tool",
                last,
                f"wave {last}: no rollout has called the tool `{tool}` since {first} "
                f"({mean(uses[:HALF]):.2f} calls in a rollout of the first waves), while the "
                f"outcome is {_outcome(waves[-HALF:]):.2f}",
                tool,
                first,
            )


def _drops(waves: Waves) -> Iterator[Alarm]:
    latest = waves[-1]
    for reason, share in sorted(latest.lost.items()):
        if reason != "stale" and share > LOST:
            how = f"lost calls as `{reason}`; docs/samples.md has its meaning"
            if reason in SLOW:
                how = f"are left out as `{reason}`, not by the agent's choice: {SLOW[reason]}"
            sentence = f"wave {latest.wave}: {share:.0%} of the rollouts {how}"
            yield Alarm("drops", latest.wave, sentence, reason)


def _selective_drops(waves: Waves) -> Iterator[Alarm]:
    latest = waves[-1]
    for sentence in latest.selective:
        reason = sentence.split("`")[1] if "`" in sentence else ""
        yield Alarm("selective_drops", latest.wave, sentence, reason)


def _logprob_drift(waves: Waves) -> Iterator[Alarm]:
    *before, latest = waves
    drifts = _values(before, lambda wave: wave.drift)
    if latest.drift is None or latest.drift_tokens < MIN_DRIFT_TOKENS or len(drifts) < HALF:
        return
    usual = median(drifts)
    if latest.drift > max(MIN_DRIFT, DRIFT_RATIO * usual):
        yield Alarm(
            "logprob_drift",
            latest.wave,
            f"wave {latest.wave}: the log-probabilities of learner and server differ more than "
            f"usual: k3 {latest.drift:.2g}, median of the waves before {usual:.2g}; see "
            "docs/learner.md",
        )


def _stale(waves: Waves) -> Iterator[Alarm]:
    latest = waves[-1]
    share = latest.lost.get("stale", 0.0)
    if share > STALE:
        yield Alarm(
            "stale",
            latest.wave,
            f"wave {latest.wave}: {share:.0%} of the rollouts are left out, because they have a "
            "call of a version more than train.max_staleness updates old: lower "
            "rollout.spare_tasks, shorten the rollouts, or raise the limit",
            "stale",
        )


ALARMS = {
    "divergence": AlarmKind(
        _divergence,
        "the means of each rule, of each evaluation without a reward, and of the outcome",
        "one of them rose in each of the last 6 waves, the outcome of the later 3 is not above "
        "that of the earlier 3, and the task is not solved",
    ),
    "one_score": AlarmKind(
        _one_score,
        "the outcome that most rollouts of the wave have",
        "90 % or more of 16 rollouts or more have exactly this outcome, which is above the lowest "
        "and below the best of the run; without a better one it is below 1, the best by convention",
    ),
    "no_spread": AlarmKind(
        _no_spread,
        "the groups whose rollouts are all the drop `no_spread`",
        "more than 60 % of the groups in each of the last 6 waves, the outcome of the later 3 is "
        "not above that of the earlier 3, and the task is not solved",
    ),
    "few_answers": AlarmKind(
        _few_answers,
        "distinct results of rollouts, as a share of the rollouts with a result",
        "below 20 % and below half of the first 3 waves' mean, in each of the last 3 waves of a "
        "run that stalls",
    ),
    "length_drift": AlarmKind(
        _length_drift,
        "tokens that the policy generated for a rollout",
        "more than twice or less than half of the first 3 waves' mean, in each of the last 3 waves "
        "of a run that stalls",
    ),
    "silent_tool": AlarmKind(
        _silent_tool,
        "calls of each tool",
        "a tool that had 0.05 calls in a rollout or more in each of the first 3 waves has none in "
        "the last 3 of a run that stalls",
    ),
    "drops": AlarmKind(
        _drops,
        "drops of the stages `executions` and `rows`, without those that the recipe asks for",
        "more than 20 % of the wave's rollouts lost a call, or were left out, for one reason",
    ),
    "selective_drops": AlarmKind(
        _selective_drops,
        "drops that an agent can cause, and the rewards of the rollouts that have them",
        "drops and low reward [go together](samples.md#drops-that-an-agent-chooses)",
    ),
    "logprob_drift": AlarmKind(
        _logprob_drift,
        "the metric `drift_k3` of the wave's update",
        "above 0.01 and above 4 times the median of the waves before, of which there are 3 or "
        "more, over 256 tokens or more",
    ),
    "stale": AlarmKind(
        _stale, "rollouts that are left out as `stale`", "more than 5 % of the wave's rollouts"
    ),
}
"""The kinds of alarms by name; `make docs` makes the table of `docs/alarms.md` from them."""


def find_alarms(waves: Waves) -> list[Alarm]:
    """Return the alarms of the last of some training waves.

    Args:
        waves: all training waves of one policy, in order; there may be none.
    """
    if not waves:
        return []
    return [alarm for kind in ALARMS.values() for alarm in kind.find(waves)]


def alarms_by_wave(waves: Waves) -> dict[int, list[Alarm]]:
    """Return the alarms of every wave that has some, each found when it was the last."""
    found = {waves[end].wave: find_alarms(waves[: end + 1]) for end in range(len(waves))}
    return {wave: alarms for wave, alarms in found.items() if alarms}


def check_names(names: Iterable[str]) -> None:
    """Check that each name is one of an alarm.

    Raises:
        UnknownName: when one is not.
    """
    for name in names:
        if name not in ALARMS:
            raise UnknownName("alarm", name, ALARMS)


def _values(waves: Waves, figure: Callable[[WaveFigures], float | None]) -> list[float]:
    return [value for wave in waves if (value := figure(wave)) is not None]


def _usual_and_latest(
    waves: Waves, figure: Callable[[WaveFigures], float | None]
) -> tuple[list[float], list[float]]:
    """Return a figure of the first and of the latest waves; both empty where one lacks it."""
    usual, latest = _values(waves[:HALF], figure), _values(waves[-HALF:], figure)
    complete = len(waves) >= WINDOW and len(usual) == len(latest) == HALF
    return (usual, latest) if complete else ([], [])


def _outcome(waves: Waves) -> float:
    """Return the mean outcome of the waves that have one; NaN if there are none."""
    outcomes = _values(waves, lambda wave: wave.outcome)
    return mean(outcomes) if outcomes else float("nan")


def _is_solved(waves: Waves, window: Waves) -> bool:
    """Return whether the outcome of a window is near the best that the run has had.

    Without two different outcomes in the run, any above 0 may be the best.
    """
    bounds = _bounds(waves)
    if bounds is None:
        return False
    lowest, best = bounds
    if best == lowest:
        return best > 0
    return _outcome(window) >= lowest + SOLVED * (best - lowest)


def _bounds(waves: Waves) -> tuple[float, float] | None:
    """Return the lowest and the best outcome of a rollout of the run; None without outcomes."""
    lowest = _values(waves, lambda wave: wave.lowest)
    best = _values(waves, lambda wave: wave.best)
    return (min(lowest), max(best)) if lowest and best else None


def _stalls(waves: Waves) -> bool:
    """Return whether the outcome of the latest waves is not above that of the first ones, or has
    fallen from the best; it does not if the task is solved.
    """
    latest = waves[-HALF:]
    outcomes = [wave.outcome for wave in waves]
    judged = [outcome for outcome in outcomes if outcome is not None]
    if len(judged) < len(waves) or _is_solved(waves, latest):
        return False
    means = [mean(judged[end - HALF : end]) for end in range(HALF, len(judged) + 1)]
    now = means[-1]
    return now <= means[0] or (max(means) > 0 and now <= FALL * max(means))
