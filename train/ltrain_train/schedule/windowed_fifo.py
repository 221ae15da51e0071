"""Windowed FIFO: which finished items of a queue of running ones may be trained (Forge, MiniMax).

With a queue of N running items, and a window of W of them from the oldest on:

* Only finished items inside the window are fetched, in any order. One outside waits, although it
  has finished.
* The window moves on when the oldest item is fetched.
* An item overtakes at most W - 1 older ones, and at most W - 1 younger ones overtake it.
* Between an item's start and its fetch, at most (N - 1) + (W - 1) others are fetched: its lag.
* W = 1 is a FIFO queue; with W = N the oldest item can delay only the N - 1 after it.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from ltrain_train.errors import BadSchedule

T = TypeVar("T", bound=Hashable)


class WindowedFifo(Generic[T]):
    """A queue of at most `size` unfetched items, fetched out of order inside a window."""

    def __init__(self, size: int, window: int) -> None:
        """Prepare an empty queue.

        Args:
            size: N, the most items that run or wait to be fetched.
            window: W, the places from the oldest unfetched item on that can be fetched.

        Raises:
            BadSchedule: when the window is not between 1 and `size`.
        """
        if not 1 <= window <= size:
            raise BadSchedule(
                f"The window of a queue of {size} is {window}. Choose a window from 1 to the "
                "size; Forge's is 0.3 of it."
            )
        self._size, self._window = size, window
        # the first key of a plain dict is slow to find after many removals
        self._places = OrderedDict[T, int]()
        """The place of each unfetched item, oldest first; places are never used twice."""
        self._started = 0
        self._finished: set[T] = set()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._places))

    @property
    def max_out_of_order(self) -> int:
        """Most items by which one is fetched earlier or later than its turn."""
        return self._window - 1

    @property
    def max_lag(self) -> int:
        """Most other items that are fetched between the start of an item and its fetch."""
        return self._size - 1 + self.max_out_of_order

    @property
    def free(self) -> int:
        """How many items can start now."""
        return self._size - len(self._places)

    def start(self, item: T) -> None:
        """Add an item, which runs now, at the end.

        Raises:
            BadSchedule: when the queue is full, or has the item.
        """
        if item in self._places or not self.free:
            state = "has it already" if item in self._places else f"is full: it holds {self._size}"
            raise BadSchedule(
                f"{item!r} cannot start: the queue {state}. Start new items while `free` is not 0."
            )
        self._places[item] = self._started
        self._started += 1

    def finish(self, item: T) -> None:
        """Record that an item has finished; a repeated call changes nothing.

        Raises:
            BadSchedule: when the queue does not have the item.
        """
        if item not in self._places:
            raise BadSchedule(f"{item!r} cannot finish: it is not in the queue. Start it first.")
        self._finished.add(item)

    def fetch(self) -> T | None:
        """Remove and return the oldest finished item inside the window; None if there is none."""
        head = next(iter(self._places.values()), 0)
        for item, place in self._places.items():
            if place >= head + self._window:
                return None
            if item in self._finished:
                self._finished.remove(item)
                del self._places[item]
                return item
        return None
