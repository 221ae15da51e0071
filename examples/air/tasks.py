"""Makes the tasks, three random words each: `python tasks.py` writes train.jsonl again."""

import json
import random
from pathlib import Path

HERE = Path(__file__).parent
COUNT = 192
"""Tasks: those of 16 waves."""
WORDS = 512
"""Words of the tiny policy."""


def questions(seed: int = 0, count: int = COUNT) -> list[dict[str, str]]:
    """Return the tasks of a seed; the first ones do not depend on how many there are."""
    chance = random.Random(seed)
    return [
        {"id": f"t{number}", "input": " ".join(f"w{chance.randrange(WORDS)}" for _ in range(3))}
        for number in range(count)
    ]


def main() -> None:
    lines = (json.dumps(task) + "\n" for task in questions())
    (HERE / "train.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
