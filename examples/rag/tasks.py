"""Write pages.jsonl, train.jsonl and val.jsonl: generated ones, or those of MuSiQue.

    python tasks.py
    python tasks.py --data musique_ans_v1.0_train.jsonl --validation musique_ans_v1.0_dev.jsonl \\
        --pages wikipedia.jsonl --out ~/musique
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from generated import questions, worlds
from musique import BadData, Page, Question, load_pages, load_questions, pages_of

HERE = Path(__file__).parent
TRAIN, VAL = 288, 192
"""Questions that are generated."""


def generate(seed: int = 0) -> tuple[list[Page], list[Question], list[Question]]:
    """Return 600 pages, the questions of training, and those of validation."""
    train, val = worlds(seed)
    return (
        [*train.pages, *val.pages],
        questions(train, "train", TRAIN, seed),
        questions(val, "val", VAL, seed),
    )


def load(
    data: Path, validation: Path, pages: Path | None
) -> tuple[list[Page], list[Question], list[Question]]:
    """Return a user's pages and answerable questions; no pages: all paragraphs of the questions.

    Raises:
        BadData: with the line and the field that are wrong.
    """
    train, val = (
        [question for question in load_questions(path) if question.answerable]
        for path in (data, validation)
    )
    return load_pages(pages) if pages else pages_of([*train, *val]), train, val


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    lines = [json.dumps(row) + "\n" for row in rows]
    path.write_text("".join(lines))
    print(f"{path}: {len(lines)} lines")


def main(arguments: list[str]) -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description="Write pages.jsonl, train.jsonl and val.jsonl.")
    parser.add_argument("--data", type=Path, help="questions of training, in MuSiQue's format")
    parser.add_argument("--validation", type=Path, help="held-out questions, in the same format")
    parser.add_argument("--pages", type=Path, help="JSONL of title and text, such as Wikipedia")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the three files")
    parser.add_argument("--seed", type=int, default=0, help="seed of what is generated")
    options = parser.parse_args(arguments)
    if (options.data is None) != (options.validation is None):
        parser.error("--data and --validation go together: name both files")
    if options.pages and not options.data:
        parser.error("--pages needs questions about these pages: add --data and --validation")
    try:
        pages, train, val = (
            load(options.data, options.validation, options.pages)
            if options.data
            else generate(options.seed)
        )
    except BadData as error:
        sys.exit(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    _write(options.out / "pages.jsonl", map(asdict, pages))
    _write(options.out / "train.jsonl", (question.as_task() for question in train))
    _write(options.out / "val.jsonl", (question.as_task() for question in val))


if __name__ == "__main__":
    main(sys.argv[1:])
