"""The choice between synchronous and asynchronous waves, by the seconds of an update in each."""

from statistics import mean

UPDATES = 2
"""Measured updates of each mode; one before them is left out: it warms up, or changes the mode."""
GAIN = 0.95
"""Most seconds of an asynchronous update, relative to a synchronous one: staleness has a price."""


class ModeTrial:
    """Runs the first updates synchronously, the next ones asynchronously, and then the faster."""

    def __init__(self, mode: str) -> None:
        """Begin a trial for the mode `auto`; `sync` and `async` need none."""
        self._mode, self._seconds = mode, list[float]()

    @property
    def waves_ahead(self) -> int:
        """How many waves are sampled while one is trained on."""
        is_async = len(self._seconds) > UPDATES if self._mode == "auto" else self._mode == "async"
        return int(is_async)

    def add(self, seconds: float) -> str:
        """Add the seconds of an update; return a sentence if it ends the trial, else ''."""
        if self._mode != "auto":
            return ""
        self._seconds.append(seconds)
        if len(self._seconds) < 2 * (UPDATES + 1):
            return ""
        sync, overlapped = (
            mean(self._seconds[begin : begin + UPDATES]) for begin in (1, UPDATES + 2)
        )
        self._mode = "async" if overlapped < GAIN * sync else "sync"
        return (
            f'train.mode = "auto": an update takes {sync:.1f} s with "sync" and {overlapped:.1f} s '
            f'with "async"; the run goes on with "{self._mode}".'
        )
