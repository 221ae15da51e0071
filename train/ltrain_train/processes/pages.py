"""`ltrain ui` beside a run: a browser shows the run while it goes on."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ltrain_instrument import settings
from ltrain_train.processes.children import ChildDied, Children, Command

PORTS = ((), ("--port", "0"))
"""The options that are tried: the default port of `ltrain ui`, and any free one."""
START_TIMEOUT = 120.0
"""Seconds until the pages must be served."""
LINK = re.compile(r"^ltrain: open (http://\S+)$", re.MULTILINE)


@contextmanager
def serve_pages(
    home: Path, store: str, recipe: Path, keep_open: Sequence[int], announce: Callable[[str], None]
) -> Iterator[None]:
    """Serve pages on a store and a home in the block, and announce their link.

    The run goes on without them if they cannot be served.

    Args:
        store: its address, which may contain a key.
        recipe: the file with the rewards.
        keep_open: descriptors of the run's lock, open until the pages have ended.
        announce: called with the link, or with the reason why there are no pages.
    """
    with Children(keep_open) as children:
        announce(_start(children, home, store, recipe))
        yield


def _start(children: Children, home: Path, store: str, recipe: Path) -> str:
    """Start `ltrain ui`, and return a sentence with its link."""
    log = home / "logs" / "ui.log"
    begin = log.stat().st_size if log.exists() else 0
    # another user of this machine can read arguments, but not the environment
    environment = {settings.STORE.name: store, settings.HOME.name: str(home.absolute())}
    command = [sys.executable, "-m", "ltrain", "ui", "--recipe", str(recipe)]
    reason = ""
    for port in PORTS:
        try:
            children.start(
                "ltrain ui",
                Command(argv=[*command, *port], env=environment, log=log),
                ready=lambda: _find_link(log, begin) is not None,
                timeout=START_TIMEOUT,
            )
        except ChildDied as error:  # such as a port that is taken
            reason = str(error)
            continue
        link = _find_link(log, begin)
        return f"Pages: {link} (signs browsers in for an hour; {log} has the next link)."
    return f"No pages are served: {reason}"


def _find_link(log: Path, begin: int) -> str | None:
    """Return the link that was printed to a log after a position."""
    with log.open("rb") as file:
        file.seek(begin)
        found = LINK.search(file.read().decode(errors="replace"))
    return found[1] if found else None
