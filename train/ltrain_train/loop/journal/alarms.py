"""The alarms of a run: found when a wave is trained, recorded as spans, and a reason to stop.

The figures of earlier waves are in the journal, so a continued run finds what one run would find.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace

import polars as pl
from opentelemetry.trace import Tracer

from ltrain_instrument import attributes
from ltrain_train.loop.journal.journal import PolicyJournal
from ltrain_train.loop.journal.wave import Wave
from ltrain_transforms.alarms import Alarm, WaveFigures, find_alarms, with_examples
from ltrain_transforms.datasets import Dataset, alarm_messages
from ltrain_transforms.recipe import Reward


def wave_alarms(
    own: PolicyJournal, wave: Wave, dataset: Dataset, rewards: Sequence[Reward]
) -> list[Alarm]:
    """Return the alarms of a training wave, with rollouts or tasks to read.

    Args:
        own: the policy's journal; it has the waves before.
        wave: as it is trained.
        dataset: what it was built into.
        rewards: those of the policy.
    """
    rewarded = {reward.evaluation for reward in rewards if reward.evaluation is not None}
    before = [each for each in own.waves if each.mode == "train" and each.wave < wave.wave]
    earlier = [_figures(each, rewarded) for each in before]
    selective = tuple(sentence for _, sentence in alarm_messages(dataset.manifest["alarms"]))
    latest = replace(_figures(wave, rewarded), selective=selective)
    return [
        with_examples(alarm, lambda name: pl.scan_parquet(dataset.path / name))
        for alarm in find_alarms([*earlier, latest])
    ]


def _figures(wave: Wave, rewarded: Collection[str]) -> WaveFigures:
    """Return the row of a wave; one of a journal without figures has only its means."""
    others = {name: mean for name, mean in wave.evaluations.items() if name not in rewarded}
    return WaveFigures(
        **(asdict(wave.figures) if wave.figures else {}),
        wave=wave.wave,
        outcome=wave.score,
        rules=wave.rules,
        others=others,
        drift=wave.metrics.get("drift_k3"),
        drift_tokens=wave.metrics.get("drift_tokens", 0.0),
    )


def record_alarms(tracer: Tracer, run: str, wave: Wave, alarms: Sequence[Alarm]) -> None:
    """Record each alarm of a wave as a span."""
    for alarm in alarms:
        values: dict[str, str | int] = {
            attributes.RUN_ID: run,
            attributes.MODE: wave.mode,
            attributes.WAVE: wave.wave,
            attributes.POLICY_NAME: wave.policy,
            attributes.POLICY_VERSION: wave.version,
            attributes.ALARM_NAME: alarm.name,
            attributes.ALARM_SUBJECT: alarm.subject,
            attributes.ALARM_MESSAGE: alarm.message,
            attributes.ALARM_ROLLOUTS: json.dumps(alarm.rollouts),
            attributes.ALARM_TASKS: json.dumps(alarm.tasks),
        }
        if wave.dataset is not None:
            values[attributes.DATASET_ID] = wave.dataset
        if alarm.since is not None:
            values[attributes.ALARM_SINCE] = alarm.since
        tracer.start_span(attributes.SPAN_ALARM, attributes=values).end()


def new_alarms(own: PolicyJournal, number: int, names: Collection[str]) -> list[str]:
    """Return the sentences of a wave's alarms of some kinds that the wave before did not have."""
    waves = {wave.wave: wave for wave in own.waves if wave.mode == "train"}
    if number not in waves:
        return []
    before = waves[number - 1].raised if number - 1 in waves else ()
    wave = waves[number]
    # the sentences of the learner come after those of the alarms
    pairs = zip(wave.raised, wave.alarms, strict=False)
    return [text for key, text in pairs if key[0] in names and key not in before]
