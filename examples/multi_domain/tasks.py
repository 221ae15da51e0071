"""Write train.jsonl and val.jsonl: the tasks of three examples, with the example as the domain."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from siblings import DOMAINS, EXAMPLES

HERE = Path(__file__).parent
VAL = 64
"""Held-out tasks of each domain, evenly from its file."""
KINDS = {"text_to_sql": "simple", "rag": "one_hop", "calculator": "one_step"}
"""The domain of an example's tasks that are taken; no others have samples that are right."""


def read(file: str, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the tasks of `file` in each example; with a limit, so many of each, evenly."""
    for domain in DOMAINS:
        rows = map(json.loads, (EXAMPLES / domain / file).read_text().splitlines())
        chosen = [row for row in rows if row["domain"] == KINDS[domain]]
        for row in chosen[:: len(chosen) // limit if limit else 1][:limit]:
            yield row | {"id": f"{domain}/{row['id']}", "domain": domain}


def main() -> None:
    """Write both files beside this module."""
    for name, limit in (("train", None), ("val", VAL)):
        lines = [json.dumps(row) + "\n" for row in read(f"{name}.jsonl", limit)]
        (HERE / f"{name}.jsonl").write_text("".join(lines))
        print(f"{name}.jsonl: {len(lines)} tasks")


if __name__ == "__main__":
    main()
