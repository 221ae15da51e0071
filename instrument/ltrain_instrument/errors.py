"""Errors that a user can fix: each says what was given, what is allowed and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches

from ltrain_instrument.installation import install_command


class LtrainError(Exception):
    """The root of every error that a user can fix; printed without a traceback."""


class UnknownName(LtrainError, KeyError):
    """A name that is not registered, or that is not a column."""

    def __init__(self, kind: str, name: str, allowed: Iterable[str]) -> None:
        allowed = sorted(allowed)
        matches = get_close_matches(name, allowed, n=1)
        hint = f" Did you mean '{matches[0]}'?" if matches else ""
        super().__init__(f"Unknown {kind} '{name}'. Choose from: {', '.join(allowed)}.{hint}")

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr


class BadSetting(LtrainError, ValueError):
    """A setting whose text cannot be parsed as its type."""


class BadReward(LtrainError, ValueError):
    """A reward that is not a finite number, or is too large to count."""


class UnknownPrompt(LtrainError, LookupError):
    """There is no prompt of a name, or it cannot be read."""


class BadPrompt(LtrainError, ValueError):
    """The values for a prompt are not those of its slots."""


class MissingExtra(LtrainError, ImportError):
    """A public name whose packages are not installed."""

    def __init__(self, needed_by: str, package: str, extra: str) -> None:
        super().__init__(
            f"{needed_by} needs the package {package}, which is not installed here. "
            f"Install it with: {install_command(extra)}"
        )
        self.name = package


class SpoolFull(LtrainError, OSError):
    """A spool at its size limit: further spans are dropped."""

    def __init__(self, directory: str, limit: int) -> None:
        super().__init__(
            f"{directory} holds the {limit} MiB that LTRAIN_SPOOL_LIMIT allows. Start the "
            "collector, which empties the folder, or raise the limit."
        )
