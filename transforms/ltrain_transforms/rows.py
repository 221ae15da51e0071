"""Calls whose tokens continue each other, as one training row.

A call joins the row whose tokens, prompts and responses so far, are an exact prefix of its own
prompt; what came between is masked. Nothing is tokenised anew, so a prompt that was rendered
differently starts a row of its own.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

ID = "I"
"""Array code of a token id: unsigned, 32 bits."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One call with its tokens."""

    call_id: str
    t: int
    prompt: Sequence[int]
    response: Sequence[int]
    logprobs: Sequence[float]
    temperature: float
    version: int
    advantage: float
    reward: float


@dataclass(slots=True)
class Row:
    prompt: Sequence[int]
    temperature: float
    context: bytes
    """All of its tokens so far; bytes, because their prefixes compare fast."""
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    @classmethod
    def open(cls, turn: Turn) -> "Row":
        return cls(turn.prompt, turn.temperature, _bytes(turn.prompt))

    def __len__(self) -> int:
        return len(self.prompt) + len(self.response)

    def add(self, turn: Turn) -> None:
        """Append what came between, masked, and what was sampled."""
        between = turn.prompt[len(self) :]
        silent, spoken = [0.0] * len(between), len(turn.response)
        self.response += [*between, *turn.response]
        self.offsets.append(len(self.response) - spoken)
        self.mask += [0] * len(between) + [1] * spoken
        self.logprobs += [*silent, *turn.logprobs]
        self.advantages += [*silent, *([turn.advantage] * spoken)]
        self.rewards += [*silent, *([0.0] * (spoken - 1)), turn.reward]
        self.context = _bytes(turn.prompt) + _bytes(turn.response)
        self.turns.append(turn)


def _bytes(tokens: Iterable[int]) -> bytes:
    return array(ID, tokens).tobytes()


def merged(turns: Iterable[Turn], max_tokens: int) -> list[Row]:
    """Make rows of one execution's calls, given in order.

    A call that would make its row longer than `max_tokens` starts one of its own.
    """
    rows: list[Row] = []
    for turn in turns:
        prompt = _bytes(turn.prompt)
        fits = len(turn.prompt) + len(turn.response) <= max_tokens
        going_on = [
            row
            for row in rows
            if fits and row.temperature == turn.temperature and prompt.startswith(row.context)
        ]
        row = max(going_on, key=len, default=None)
        if row is None:
            row = Row.open(turn)
            rows.append(row)
        row.add(turn)
    return rows


def sample_id(execution_id: str, row: Row) -> str:
    """Name a row by its execution and its calls: 32 hexadecimal digits."""
    parts = "\x1f".join((execution_id, *(turn.call_id for turn in row.turns)))
    return sha256(parts.encode()).hexdigest()[:32]


def following(rows: Sequence[Row]) -> list[Row | None]:
    """Give for each row the one that goes on where it stops: the next to begin after its end."""
    begun = sorted(rows, key=lambda row: row.turns[0].t)
    return [next((n for n in begun if n.turns[0].t > row.turns[-1].t), None) for row in rows]


def weights(rows: Sequence[Row], weigh: str) -> list[list[float]]:
    """Give each token's weight in the loss, 0 where it was not sampled.

    Args:
        rows: all rows of one execution.
        weigh: what has equal weight: `rollout`, `call` or `token`.
    """
    spoken = sum(sum(row.mask) for row in rows)
    given = []
    for row in rows:
        weight = [0.0] * len(row.mask)
        for offset, turn in zip(row.offsets, row.turns, strict=True):
            length = len(turn.response)
            each = {"rollout": 1 / spoken, "call": 1 / length, "token": 1.0}[weigh]
            weight[offset : offset + length] = [each] * length
        given.append(weight)
    return given
