"""The log of a run's critic: every answer and what became of it, in `runs/<run>/prompts.jsonl`.

Each line is on disk before the run goes on, so a continued run asks for no answer twice. A line
that a kill cut off does not count.
"""

import json
import os
from pathlib import Path
from typing import Any

FILE = "prompts.jsonl"


class ProposalLog:
    """Records by key; a key has one record."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        content = self.path.read_bytes() if self.path.exists() else b""
        complete = content[: content.rfind(b"\n") + 1]
        self._size = len(complete)
        self._records: dict[str, dict[str, Any]] = {}
        for line in complete.splitlines():
            record = json.loads(line)
            self._records[record["key"]] = record

    def __getitem__(self, key: str) -> dict[str, Any] | None:
        """Return the record of a key; None if there is none."""
        return self._records.get(key)

    def starting(self, prefix: str) -> list[dict[str, Any]]:
        """Return the records whose keys start with a prefix, in their order."""
        return [record for key, record in self._records.items() if key.startswith(prefix)]

    def add(self, key: str, **fields: Any) -> None:
        """Append a record, unless the key has one."""
        if key in self._records:
            return
        record = {"key": key, **fields}
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.truncate(self._size)  # removes what a kill left of a line
            file.seek(self._size)
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._size = file.tell()
        self._records[key] = record
