"""Early stop: a wave ends with enough groups, and the other rollouts are carried over."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, integers, lists

from ltrain_train.errors import BadSchedule
from ltrain_train.schedule import EarlyStop


def test_a_wave_is_full_when_the_last_rollout_of_enough_groups_has_ended() -> None:
    wave = EarlyStop(2)
    for group in "aabbcc":
        wave.add(group)
    full = []
    for group in "abcab":
        wave.end(group)
        full.append(wave.is_full)
    assert full == [False, False, False, False, True]
    with pytest.raises(BadSchedule, match="Group 'a' has no rollout"):
        wave.end("a")
    with pytest.raises(BadSchedule, match="0 groups are to fill a wave"):
        EarlyStop(0)


def test_without_a_number_a_wave_waits_for_every_rollout() -> None:
    wave = EarlyStop()
    assert wave.is_full
    wave.add("a")
    wave.add("b")
    wave.end("a")
    assert not wave.is_full
    wave.end("b")
    assert wave.is_full


@given(integers(1, 4), integers(0, 3), lists(integers(1, 4), min_size=1, max_size=6), data())
def test_over_all_waves_every_rollout_ends_once_and_none_is_lost(
    enough: int, extra: int, samples: list[int], choices: DataObject
) -> None:
    carried: list[tuple[int, int]] = []
    started: Counter[tuple[int, int]] = Counter()
    ended: Counter[tuple[int, int]] = Counter()
    for number, sample in enumerate(samples):
        groups = enough + (extra if number == 0 else 0)
        new = [(number, task) for task in range(groups) for _ in range(sample)]
        started.update(new)
        wave = EarlyStop(enough)
        running = carried + new
        for group in running:
            wave.add(group)
        before = ended.copy()
        while not wave.is_full:
            group = running.pop(choices.draw(integers(0, len(running) - 1)))
            wave.end(group)
            ended[group] += 1
        complete = [group for group in started if ended[group] == started[group]]
        new_ones = [group for group in complete if before[group] != started[group]]
        assert len(new_ones) == enough
        carried = running
        # in = out + what is carried over
        assert started == ended + Counter(carried)
    assert len({group for group in carried}) == extra
