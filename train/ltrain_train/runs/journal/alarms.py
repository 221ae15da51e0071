"""The alarms of a run: found when a wave is trained, recorded as spans, and a reason to stop.

The figures of earlier waves are in the journal, so a continued run finds what one run would find.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import polars as pl
from opentelemetry.trace import Tracer

from ltrain_instrument import attributes
from ltrain_train.runs.journal.journal import PolicyJournal
from ltrain_train.runs.journal.updates import TrainedUpdate, write_updates
from ltrain_train.runs.journal.wave import Wave
from ltrain_transforms.alarms import Alarm, WaveFigures, find_alarms, read_update, with_examples
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
    """
    before = [each for each in own.waves if each.mode == "train" and each.wave < wave.wave]
    earlier = [_figures(each, rewards) for each in before]
    latest = replace(_figures(wave, rewards), selective=_selective(dataset))
    return [with_examples(alarm, dataset.scan) for alarm in find_alarms([*earlier, latest])]


def _figures(wave: Wave, rewards: Sequence[Reward]) -> WaveFigures:
    """Return the row of a wave; one of a journal without figures has only its means."""
    rewarded = {reward.evaluation for reward in rewards}
    others = {name: mean for name, mean in wave.evaluations.items() if name not in rewarded}
    return WaveFigures(
        **(asdict(wave.figures) if wave.figures else {}),
        wave=wave.wave,
        outcome=wave.score,
        full_outcome=_full_outcome(rewards),
        rules=wave.rules,
        others=others,
        drift=wave.metrics.get("drift_k3"),
        drift_tokens=wave.metrics.get("drift_tokens", 0.0),
    )


def _full_outcome(rewards: Sequence[Reward]) -> float:
    return sum(max(0.0, each.weight) for each in rewards if each.evaluation is not None)


def update_alarms(
    folder: Path,
    updates: Sequence[TrainedUpdate],
    version: int,
    dataset: Dataset,
    rewards: Sequence[Reward],
) -> list[Alarm]:
    """Return the alarms of an update of an offline run, and record its figures for the next ones.

    Args:
        folder: of the run.
        updates: those before.
        version: what was made; the number of a version stands for that of a wave.
        dataset: what it was trained on.
    """
    before = [each for each in updates if each.figures.wave < version]
    since = max((each.until for each in before), default=0)
    scan = partial(_scan_since, dataset, since)
    until = scan("executions").select(pl.col("end").max()).collect().item()
    latest = TrainedUpdate(
        until=since if until is None else until,
        figures=replace(
            read_update(version, scan, _selective(dataset)), full_outcome=_full_outcome(rewards)
        ),
    )
    write_updates(folder, [*before, latest])
    alarms = find_alarms([each.figures for each in (*before, latest)])
    return [with_examples(alarm, scan) for alarm in alarms]


def _scan_since(dataset: Dataset, since: int, name: str) -> pl.LazyFrame:
    """Return a table, without the executions that ended until then."""
    rows = dataset.scan(name)
    return rows.filter(pl.col("end") > since) if name == "executions" else rows


def _selective(dataset: Dataset) -> tuple[str, ...]:
    return tuple(sentence for _, sentence in alarm_messages(dataset.manifest["alarms"]))


def record_alarms(
    tracer: Tracer,
    alarms: Sequence[Alarm],
    *,
    run: str,
    mode: str,
    policy: str,
    version: int,
    dataset: str | None,
) -> None:
    """Record each alarm of a wave as a span.

    Args:
        version: the version that sampled the wave.
        dataset: what the wave was built into.
    """
    for alarm in alarms:
        values: dict[str, str | int] = {
            attributes.RUN_ID: run,
            attributes.MODE: mode,
            attributes.WAVE: alarm.wave,
            attributes.POLICY_NAME: policy,
            attributes.POLICY_VERSION: version,
            attributes.ALARM_NAME: alarm.name,
            attributes.ALARM_SUBJECT: alarm.subject,
            attributes.ALARM_MESSAGE: alarm.message,
            attributes.ALARM_ROLLOUTS: json.dumps(alarm.rollouts),
            attributes.ALARM_TASKS: json.dumps(alarm.tasks),
        }
        if dataset is not None:
            values[attributes.DATASET_ID] = dataset
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
