"""Control groups of attempts whose runner is root.

The kernel limits the number of processes of every user but root, so sandboxes that root starts need
a control group each. It also bounds their memory, that of their files included.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ltrain_instrument.machine import is_running
from ltrain_train.sandboxes.settings import SandboxSettings

ROOT = Path("/sys/fs/cgroup")
PREFIX = "ltrain-sandbox"
JOIN = 'for file in $1; do echo $$ >"$file" || exit 1; done; shift; exec "$@"'
"""A shell's script that joins control groups and becomes the command line after them."""


@dataclass(frozen=True, slots=True)
class Controllers:
    """The folders of this machine in which control groups can be made."""

    pids: Path
    memory: Path | None

    @classmethod
    def find(cls) -> "Controllers | None":
        """Return the folders; None if no control group can be made."""
        unified = ROOT / "cgroup.subtree_control"
        if unified.exists():
            names = unified.read_text().split()
            found = (ROOT, ROOT if "memory" in names else None) if "pids" in names else None
        else:
            pids, memory = ROOT / "pids", ROOT / "memory"
            found = (pids, memory if memory.is_dir() else None) if pids.is_dir() else None
        return cls(*found) if found is not None and os.access(found[0], os.W_OK) else None

    def make(self, name: str, settings: SandboxSettings) -> Sequence[Path]:
        """Make the groups of an attempt and return their folders."""
        folder = f"{PREFIX}-{os.getpid()}-{name}"
        memory = settings.most_memory_mib << 20
        values = [
            (self.pids, "pids.max", "pids.max", settings.most_processes),
            (self.memory, "memory.max", "memory.limit_in_bytes", memory),
        ]
        made = set()
        for parent, name_2, name_1, value in values:  # of the two versions of control groups
            if parent is not None:
                (parent / folder).mkdir(exist_ok=True)
                file = name_2 if (parent / folder / name_2).exists() else name_1
                (parent / folder / file).write_text(str(value))
                made.add(parent / folder)
        return sorted(made)

    def remove(self, name: str) -> None:
        """Remove the groups of an attempt that has ended, and those of runners that were killed."""
        for parent in {self.pids, self.memory} - {None}:
            for folder in parent.glob(f"{PREFIX}-*") if parent is not None else ():
                owner, _, attempt = folder.name.removeprefix(f"{PREFIX}-").partition("-")
                own = owner == str(os.getpid())
                if (own and attempt == name) or not (own or is_running(int(owner))):
                    with suppress(OSError):
                        folder.rmdir()


def join_command(groups: Sequence[Path]) -> list[str]:
    """Return the start of a command line that runs the rest of it in the groups."""
    files = " ".join(str(group / "cgroup.procs") for group in groups)
    return ["/bin/sh", "-c", JOIN, "sh", files]
