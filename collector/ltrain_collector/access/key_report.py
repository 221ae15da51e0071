"""Arguments and output of `ltrain key`."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import get_args

from ltrain_collector.access.grants import Role
from ltrain_collector.access.keys import Keys
from ltrain_instrument.errors import LtrainError, UnknownName
from ltrain_instrument.identity import Identity, Mode

IDENTITY_FIELDS = tuple(field.name for field in fields(Identity))
INTEGER_FIELDS = ("wave", "sample", "attempt")
MODES = get_args(Mode)


class BadBinding(LtrainError, ValueError):
    """Invalid values of --bind."""


def parse_role(role: str) -> Role:
    """Return the role of a name.

    Raises:
        UnknownName: there is no such role.
    """
    if role not in tuple(Role):
        raise UnknownName("role", role, tuple(Role))
    return Role(role)


def make_bound_key(
    keys: Keys, role: Role, pairs: Sequence[str], seconds: float, rewards: bool
) -> str:
    """Return a key that is bound to the identity in `pairs`, each name=value.

    Raises:
        BadBinding: they name neither a rollout nor a run, or an unknown field.
    """
    texts = dict(pair.partition("=")[::2] for pair in pairs)
    wrong = sorted(texts.keys() - set(IDENTITY_FIELDS))
    if role is not Role.INGEST or wrong or not (texts.get("rollout") or texts.get("run")):
        what = f"'{wrong[0]}'" if wrong else f"role '{role}', {', '.join(pairs) or 'nothing'}"
        raise BadBinding(
            f"A key cannot be bound to {what}. Only ingest keys are bound, to a rollout or a run "
            f"and further fields of its identity: --bind rollout=ID --bind attempt=1. Fields: "
            f"{', '.join(IDENTITY_FIELDS)}."
        )
    if (mode := texts.get("mode", "prod")) not in MODES:
        raise BadBinding(f"'{mode}' is not a mode. Choose from: {', '.join(MODES)}.")
    try:
        integers = {name: int(texts[name]) for name in INTEGER_FIELDS if name in texts}
    except ValueError as error:
        raise BadBinding(
            f"--bind {', '.join(INTEGER_FIELDS)} take whole numbers: {error}."
        ) from error
    identity = Identity(**{**texts, **integers})  # type: ignore[arg-type]
    return keys.sign_bound(identity, seconds, rewards=rewards)


def key_lines(keys: Keys) -> Iterator[str]:
    """Yield one line per made key."""
    made = keys.made_keys()
    if not made:
        yield "No keys." if not keys.requires_key else "No keys: every request is refused."
    for one in made:
        when = datetime.fromtimestamp(one.created, UTC).strftime("%Y-%m-%d %H:%M")
        yield f"{one.id}  {one.role:<7}  {when}  {one.note}".rstrip()
