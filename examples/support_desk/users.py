"""Simulated users of the desk: topics that drift, and thumbs with noise and delay.

Start it beside `ltrain serve`; ctrl-C ends it:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 opentelemetry-instrument python users.py

Each answered ticket is a line of JSON in the file that `--out` names.
"""

import argparse
import json
import math
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from desk import TEAMS, Desk

import ltrain

TICKETS = {
    "billing": (
        "I was charged twice for {thing}.",
        "My card was declined when I paid for {thing}.",
        "The invoice for {thing} has the wrong amount.",
        "Can I pay for {thing} in three parts?",
        "The discount is missing from the bill for {thing}.",
    ),
    "shipping": (
        "Where is {thing}? It should be here by now.",
        "The tracking number of {thing} does not work.",
        "Can you deliver {thing} to another address?",
        "The courier left {thing} at the wrong door.",
        "When will {thing} arrive?",
    ),
    "returns": (
        "{thing} arrived broken. I want to send it back.",
        "I changed my mind about {thing}. How do I return it?",
        "{thing} does not fit. Can I exchange it?",
        "I sent {thing} back last week. Did you get it?",
        "Which label do I put on the parcel to return {thing}?",
    ),
    "account": (
        "I forgot my password and cannot see {thing}.",
        "Please change the email address of my account.",
        "I cannot log in to look at {thing}.",
        "Delete my account and all my data.",
        "My profile shows {thing}, which somebody else bought.",
    ),
}
THINGS = ("a lamp", "two chairs", "the desk", "my order", "a shelf", "the blue sofa", "my parcel")
PERIOD = 600.0
"""Seconds after which the topics have the same weights again."""
WEIGHT = 0.8
"""How much the weight of a topic rises and falls, of its mean."""
RATES, MISTAKES = 0.9, 0.05
"""Share of the answers that get a thumb, and of the thumbs that say the opposite."""
DELAY = 3.0
"""Mean seconds until a thumb arrives."""
CLOSED = 0.25
"""Share of the tickets that the other teams close at once; billing closes all of them."""


def draw_ticket(chance: random.Random, seconds: float) -> tuple[str, str]:
    """Return the team of a ticket, and its text; the topics drift with the time."""
    turns = [seconds / PERIOD + place / len(TEAMS) for place in range(len(TEAMS))]
    weights = [1 + WEIGHT * math.sin(2 * math.pi * turn) for turn in turns]
    [team] = chance.choices(TEAMS, weights)
    return team, chance.choice(TICKETS[team]).format(thing=chance.choice(THINGS))


class Users:
    """Users who ask the desk one after the other."""

    def __init__(self, desk: Desk, out: Path, seed: int) -> None:
        """Let the answers be written to `out`."""
        self._desk, self._out, self._seed = desk, out, seed
        self._began, self._lock = time.monotonic(), threading.Lock()

    def ask_forever(self, user: int) -> None:
        """Ask one ticket after the other, and give thumbs."""
        chance = random.Random(f"{self._seed} {user}")
        while True:
            self._ask(chance)

    def _ask(self, chance: random.Random) -> None:
        seconds = time.monotonic() - self._began
        team, ticket = draw_ticket(chance, seconds)
        answer = self._desk.answer(ticket)
        right = answer.team == team
        closed = float(answer.team == "billing" or chance.random() < CLOSED)
        self._later(0.0, lambda: ltrain.reward(closed, name="closed", trace=answer.trace))
        if chance.random() < RATES:
            thumb = float(right != (chance.random() < MISTAKES))
            delay = min(chance.expovariate(1 / DELAY), 4 * DELAY)
            self._later(delay, lambda: ltrain.reward(thumb, name="thumbs", trace=answer.trace))
        line = {"at": time.time(), "right": right, "team": team, "answer": answer.team}
        with self._lock, self._out.open("a") as out:
            out.write(json.dumps(line) + "\n")

    @staticmethod
    def _later(seconds: float, act: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()


def main() -> None:
    """Let users ask the desk until ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=8, help="that ask at the same time")
    parser.add_argument("--out", type=Path, default=Path("answers.jsonl"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    users = Users(Desk(), options.out, options.seed)
    with ThreadPoolExecutor(options.users) as pool:
        asking = [pool.submit(users.ask_forever, user) for user in range(options.users)]
        for each in asking:
            each.result()


if __name__ == "__main__":
    main()
