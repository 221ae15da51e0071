"""What `ltrain key` reads from its arguments and shows."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import get_args

from ltrain_collector.grants import Role
from ltrain_collector.keys import Keys
from ltrain_instrument.errors import LtrainError, UnknownName
from ltrain_instrument.identity import Identity, Mode

NAMES = tuple(field.name for field in fields(Identity))
WHOLE = ("wave", "sample", "attempt")
MODES = get_args(Mode)


class BadBinding(LtrainError, ValueError):
    """What a key cannot be bound to."""


def chosen(role: str) -> Role:
    """Give the role of that name.

    Raises:
        UnknownName: when there is none.
    """
    if role not in tuple(Role):
        raise UnknownName("role", role, tuple(Role))
    return Role(role)


def bound(keys: Keys, role: Role, pairs: Sequence[str], seconds: float, rewards: bool) -> str:
    """Return a key that is bound to what `pairs`, each name=value, say.

    Raises:
        BadBinding: when they name no rollout and no run, or something that no span carries.
    """
    given = dict(pair.partition("=")[::2] for pair in pairs)
    wrong = sorted(set(given) - set(NAMES))
    if role is not Role.INGEST or wrong or not (given.get("rollout") or given.get("run")):
        what = f"'{wrong[0]}'" if wrong else f"role '{role}', {', '.join(pairs) or 'nothing'}"
        raise BadBinding(
            f"A key cannot be bound so: {what}. Only ingest keys are bound, to a rollout or a run, "
            f"and more of its identity: --bind rollout=ID --bind attempt=1. Names: "
            f"{', '.join(NAMES)}."
        )
    try:
        values = {name: int(text) if name in WHOLE else text for name, text in given.items()}
    except ValueError as error:
        raise BadBinding(f"{', '.join(WHOLE)} are whole numbers: {error}.") from error
    if given.get("mode", "prod") not in MODES:
        raise BadBinding(f"'{given['mode']}' is no mode. Choose from: {', '.join(MODES)}.")
    return keys.sign(Identity(**values), seconds, rewards=rewards)  # type: ignore[arg-type]


def lines(keys: Keys) -> Iterator[str]:
    """Give a line for each made key."""
    made = keys.all()
    if not made:
        yield "No keys." if not keys.guarded else "No keys: nobody is let in."
    for one in made:
        when = datetime.fromtimestamp(one.created, UTC).strftime("%Y-%m-%d %H:%M")
        yield f"{one.id}  {one.role:<7}  {when}  {one.note}".rstrip()
