"""This machine: its processes, its addresses, and what its terminal can show."""

import errno
import ipaddress
import os
import re
from pathlib import Path

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
"""Host names of ltrain's own servers on this machine; `is_loopback` recognises more."""

MORE_FILES = "Raise the limit with `ulimit -n 65536`"
"""The remedy if a process may open too few files."""
MORE_SPACE = "Free some space"
REMEDIES = {
    errno.EMFILE: MORE_FILES,
    errno.ENFILE: MORE_FILES,
    errno.ENOSPC: MORE_SPACE,
    errno.EDQUOT: MORE_SPACE,
    errno.EROFS: "Make the disk writable",
}
"""The remedy by the error of a system that refuses a file, space or to write. What failed may
succeed when it is repeated."""

CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except tab and line feed, bidirectional marks, and lone surrogates: escape
sequences move the cursor, rewrite lines or fill the clipboard, and marks reverse the reading
direction."""


def is_running(pid: int) -> bool:
    """Return whether the process runs; a zombie counts as ended."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # an id parsed from a folder name may be any number
        return False
    except PermissionError:
        pass  # it belongs to another user
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # the process has just ended, or this system has no /proc
        return not Path("/proc/self").exists()
    return state not in "ZX"


def is_loopback(host: str) -> bool:
    """Return whether `host`, a name or an address, is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def visible(text: str) -> str:
    """Return `text` with control characters of a terminal replaced by their code points."""
    return CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
