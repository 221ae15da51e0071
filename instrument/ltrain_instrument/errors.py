"""What a user can mend. Each error says what was given, what is allowed, and what mends it."""

from collections.abc import Iterable
from difflib import get_close_matches


class LtrainError(Exception):
    """The root of every error that is a user's to mend; printed without a traceback."""


class UnknownName(LtrainError, KeyError):
    """A name that is not registered or not a column."""

    def __init__(self, kind: str, given: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = get_close_matches(given, known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        super().__init__(f"Unknown {kind} '{given}'. Choose from: {', '.join(known)}.{hint}")

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr


class BadSetting(LtrainError, ValueError):
    """A setting whose text cannot be read as its type."""


class BadReward(LtrainError, ValueError):
    """A reward that is not a finite number."""


class MissingExtra(LtrainError, ImportError):
    """A public name whose packages are not installed."""

    def __init__(self, needed_by: str, package: str, extra: str) -> None:
        super().__init__(
            f"{needed_by} needs the package {package}, which is not installed here. "
            f"Install it with: pip install 'ltrain[{extra}]'"
        )
        self.name = package


class SpoolFull(LtrainError, OSError):
    """A spool at its limit: what comes now is dropped."""

    def __init__(self, directory: str, limit: int) -> None:
        super().__init__(
            f"{directory} holds the {limit} MiB that LTRAIN_SPOOL_LIMIT allows. Start the "
            "collector, which empties it, or raise the limit."
        )
