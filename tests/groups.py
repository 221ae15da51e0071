"""Which tests run in one process: those of a file, of files with one server, or a part of a file.

pytest-xdist keeps its own groups in the ids of tests, which pytest 9.2 does not let it change.
"""

from zlib import crc32

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

SHARED = {
    "tests/train/learner/test_learner.py": "learner",
    "tests/train/learner/test_objectives.py": "learner",
}
"""The name of the server that the tests of a file share with those of other files."""
PARTS = {"tests/docs/test_commands.py": 2}
"""Into how many processes the tests of a file may be divided; they share no server."""


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Sends each group of tests to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Return the name of a test's group."""
    file = nodeid.partition("::")[0]
    if parts := PARTS.get(file):
        return f"{file} {crc32(nodeid.encode()) % parts}"
    return SHARED.get(file, file)
