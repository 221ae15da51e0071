"""The journal of the requests that change a server's state: a line before each, and one after.

A learner that was killed leaves training runs at the server, which hold places for adapters. The
next learner reads the journal and releases them. A run is never continued: its state after the last
checkpoint is unknown, such as a gradient without its optimizer step.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Journal:
    """The file of one learner; None: nothing is written."""

    file: Path | None

    def write(self, request: str, **fields: Any) -> None:
        """Append a line, on the disk when this returns."""
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps({"request": request} | fields) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def open_runs(self, server: str) -> list[str]:
        """Return the training runs at a server that were created and not released."""
        runs: dict[str, None] = {}
        for line in self._lines():
            if line.get("server") == server and line["request"] == "created":
                runs[line["run"]] = None
            elif line["request"] == "unload":
                runs.pop(line["run"], None)
        return list(runs)

    def _lines(self) -> list[dict[str, Any]]:
        if self.file is None or not self.file.exists():
            return []
        lines = []
        for text in self.file.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                continue  # the last line of a process that was killed, before its request
        return lines
