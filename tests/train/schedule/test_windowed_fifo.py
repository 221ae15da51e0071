"""Windowed FIFO: Forge's figures for N = 8 and W = 4, and the same bounds for every N and W."""

import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, integers

from ltrain_train.errors import BadSchedule
from ltrain_train.schedule import WindowedFifo


def lags_and_overtakings(order: list[tuple[str, int]]) -> tuple[int, int]:
    """Return the largest lag and the most older unfetched items that a fetch has overtaken."""
    started: dict[int, int] = {}
    fetched: set[int] = set()
    lag = out_of_order = 0
    for event, item in order:
        if event == "start":
            started[item] = len(fetched)
            continue
        lag = max(lag, len(fetched) - started[item])
        out_of_order = max(out_of_order, len(set(range(item)) - fetched))
        fetched.add(item)
    return lag, out_of_order


def run(queue: WindowedFifo[int], items: int, slowest_first: bool) -> list[tuple[str, int]]:
    """Return starts and fetches if the fetchable item that finishes next is the oldest, or not."""
    order: list[tuple[str, int]] = []
    waiting, running = list(range(items)), list[int]()
    while waiting or running:
        while waiting and queue.free:
            running.append(waiting.pop(0))
            queue.start(running[-1])
            order.append(("start", running[-1]))
        # the slowest item is the head: everything behind it finishes, then the head itself
        behind = running[1:] if slowest_first else running[:1]
        for item in behind:
            queue.finish(item)
        while (fetched := queue.fetch()) is None:
            queue.finish(running[0])
        running.remove(fetched)
        order.append(("fetch", fetched))
    return order


def test_forges_figures_for_a_queue_of_8_and_a_window_of_4() -> None:
    queue = WindowedFifo[int](8, 4)
    assert (queue.max_out_of_order, queue.max_lag) == (3, 10)
    for item in range(8):
        queue.start(item)
    order = [("start", item) for item in range(8)]
    # of the eight that run, item 7 is last: the seven before it are fetched, then the three after
    # it that its window has, and then itself
    for started, item in enumerate([*range(7), 8, 9, 10], start=8):
        queue.finish(item)
        assert queue.fetch() == item
        queue.start(started)
        order += [("fetch", item), ("start", started)]
    for item in range(11, 15):
        queue.finish(item)
    assert queue.fetch() is None and queue.free == 0
    queue.finish(7)
    assert queue.fetch() == 7
    assert lags_and_overtakings([*order, ("fetch", 7)]) == (10, 1)
    assert [queue.fetch() for _ in range(5)] == [11, 12, 13, 14, None]


def test_the_last_item_of_the_window_overtakes_the_three_before_it() -> None:
    queue = WindowedFifo[int](8, 4)
    for item in range(8):
        queue.start(item)
    for item in (7, 4, 3):
        queue.finish(item)
    assert [queue.fetch(), queue.fetch()] == [3, None]
    starts = [("start", item) for item in range(8)]
    assert lags_and_overtakings([*starts, ("fetch", 3)]) == (0, 3)


def test_a_finished_item_outside_the_window_waits() -> None:
    queue = WindowedFifo[str](8, 4)
    for item in "abcdefgh":
        queue.start(item)
    for item in "dcefgh":
        queue.finish(item)
    assert [queue.fetch() for _ in range(3)] == ["c", "d", None]
    queue.finish("b")
    assert [queue.fetch() for _ in range(2)] == ["b", None]
    queue.finish("a")
    assert [queue.fetch() for _ in range(6)] == ["a", "e", "f", "g", "h", None]
    assert (len(queue), queue.free) == (0, 8)


@pytest.mark.parametrize("window", [1, 4, 8])
def test_a_slow_head_delays_the_items_outside_its_window(window: int) -> None:
    queue = WindowedFifo[int](8, window)
    order = run(queue, 40, slowest_first=True)
    lag, out_of_order = lags_and_overtakings(order)
    assert sorted(item for event, item in order if event == "fetch") == list(range(40))
    assert out_of_order <= queue.max_out_of_order and lag <= queue.max_lag


@given(integers(1, 9), data())
def test_every_item_is_fetched_once_within_the_bounds(size: int, choices: DataObject) -> None:
    queue = WindowedFifo[int](size, choices.draw(integers(1, size)))
    order: list[tuple[str, int]] = []
    running: list[int] = []
    later: dict[int, int] = {}
    for item in range(30):
        while not queue.free:
            queue.finish(running.pop(choices.draw(integers(0, len(running) - 1))))
            while (fetched := queue.fetch()) is not None:
                order.append(("fetch", fetched))
        queue.start(item)
        running.append(item)
        order.append(("start", item))
    for item in running:
        queue.finish(item)
    while (fetched := queue.fetch()) is not None:
        order.append(("fetch", fetched))
    fetches = [item for event, item in order if event == "fetch"]
    assert sorted(fetches) == list(range(30)) and len(queue) == 0
    lag, out_of_order = lags_and_overtakings(order)
    assert lag <= queue.max_lag and out_of_order <= queue.max_out_of_order
    for place, item in enumerate(fetches):
        later[item] = sum(other > item for other in fetches[:place])
    assert max(later.values()) <= queue.max_out_of_order


@given(integers(1, 6), data())
def test_a_window_of_one_is_a_fifo_queue(size: int, choices: DataObject) -> None:
    queue = WindowedFifo[int](size, 1)
    for item in range(size):
        queue.start(item)
    for item in choices.draw(integers(0, size).map(lambda count: range(count)[::-1])):
        queue.finish(item)
    fetched = list(iter(queue.fetch, None))
    assert fetched == list(range(len(fetched)))


def test_wrong_sizes_and_items_are_refused() -> None:
    for size, window in [(0, 0), (4, 0), (4, 5)]:
        with pytest.raises(BadSchedule, match="Choose a window from 1 to the size"):
            WindowedFifo[int](size, window)
    queue = WindowedFifo[int](1, 1)
    queue.start(0)
    with pytest.raises(BadSchedule, match="has it already"):
        queue.start(0)
    with pytest.raises(BadSchedule, match="is full: it holds 1"):
        queue.start(1)
    with pytest.raises(BadSchedule, match="not in the queue"):
        queue.finish(1)
