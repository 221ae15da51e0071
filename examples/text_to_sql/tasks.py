"""Write train.jsonl and val.jsonl, from generated databases or from Spider's.

    python tasks.py
    python tasks.py --data ~/spider --out ~/spider-tasks

Without `--data`, this also writes the databases, in Spider's layout, into `data/`.
"""

import argparse
import json
import sys
from pathlib import Path

from database import HERE
from generator import write
from spider import FILES, BadData, load_questions


def write_tasks(folder: Path, out: Path, root: str) -> None:
    """Write the tasks of Spider's files in `folder`, whose path in the tasks is `root`.

    Raises:
        BadData: with the file, the entry and the field that are wrong.
    """
    made = {name: load_questions(folder, file, root) for name, file in FILES.items()}
    out.mkdir(parents=True, exist_ok=True)
    for name, questions in made.items():
        lines = [json.dumps(question.as_task()) + "\n" for question in questions]
        (out / f"{name}.jsonl").write_text("".join(lines))
        databases = {question.db_id for question in questions}
        print(f"{name}.jsonl: {len(lines)} questions, {len(databases)} databases")


def main(arguments: list[str]) -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Write train.jsonl and val.jsonl.")
    parser.add_argument("--data", type=Path, help="Spider's folder, with tables.json and database/")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the two files")
    parser.add_argument("--seed", type=int, default=0, help="seed of what is generated")
    options = parser.parse_args(arguments)
    out = options.out.absolute()
    if options.data is not None:
        folder = options.data.absolute()
    else:
        folder = out / "data"
        write(folder, options.seed)
    try:
        write_tasks(folder, out, "data" if folder == HERE / "data" else str(folder))
    except BadData as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
