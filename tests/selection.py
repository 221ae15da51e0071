"""Which tests a change needs: `make test` and `.ci/run` run these, `make test-nightly` runs all.

A test runs on every change unless it

- has the marker `nightly`: another loss, another kill, another case of what a test without the
  marker covers;
- is a case beyond the number in the marker `sampled`: the cases that run are spread evenly;
- is of a framework that the change does not touch, in an environment that only it needs;
- tests or trains an example that the change does not touch; one is always tested and trained. A
  change of what reads the traces of all examples tests them all, with exact traces, and trains one.

The files of a change are those that differ from the merge base with `LTRAIN_TEST_BASE`, by default
`origin/main`, committed or not. On main itself they are those of the commits of four hours: a push
has no older ones that an earlier push has not tested. Without git, or if a file that all of them
share has changed, the tests of all frameworks or examples run.

`python tests/selection.py [--nightly]` prints the environments that the selected tests of
frameworks need. It runs before any package is installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
BASES = ("origin/main", "main")
WINDOW_S = 4 * 3600
"""Seconds before the newest commit in which the commits of a push were made."""
FRAMEWORKS = ROOT / "tests" / "frameworks"
EXAMPLES = ROOT / "tests" / "examples"
ALWAYS = "frameworks"
"""The environment whose agents run on every change; it is small."""
OTHERS = ("openai2", "otel144", "clients", "pyclients", "platforms", "gyms", "gyms_legacy")
EXAMPLE = "calculator"
"""The example that is tested and trained on every change."""
SHARED_BY_FRAMEWORKS = re.compile(
    r"tests/frameworks/(conftest|model|turns|completeness|expected|exported)\.py"
    r"|instrument/ltrain_instrument/(instrumentors|patches|privacy|distro|identity/context)"
    r"|transforms/ltrain_transforms/(dialects|calls)/"
)
TRAINING = "training"
"""The test that trains agents of all frameworks with structured output."""
NEEDED_BY_TRAINING = re.compile(
    r"tests/frameworks/(training/|ways|short_answers)|setup/vllm\.lock"
    r"|train/ltrain_train/(learner/(masks|samples|prefix_tree|verl_backend/)|policy/constraint"
    r"|gateway/(trainable_requests|policy_exchange|serving/(applied_constraints|vllm)))"
    r"|transforms/ltrain_transforms/samples/"
)
CLIENTS = "clients"
"""The test that runs coding agents behind a gateway."""
NEEDED_BY_CLIENTS = re.compile(
    r"train/ltrain_train/gateway/(apis|conversations)/|collector/ltrain_collector/client_events\."
)
PLATFORMS = "platform_servers"
"""The test that imports from servers of platforms."""
NEEDED_BY_PLATFORMS = re.compile(r"collector/ltrain_collector/sources/(servers/|spans\.)")
GYMS = "gyms"
"""The test of environments of other packages."""
NEEDED_BY_GYMS = re.compile(
    r"episodes/ltrain_episodes/environments/|train/ltrain_train/rollout/environment_tasks\."
)
SHARED_BY_EXAMPLES = re.compile(
    r"tests/examples/(conftest|example_module|sampling_agent)\.py"
    r"|transforms/ltrain_transforms/(dialects|calls|states)/"
)


def changed_files() -> frozenset[str] | None:
    """Return the files of the change, relative to the repository; None if git cannot tell."""
    bases = [base] if (base := os.environ.get("LTRAIN_TEST_BASE")) else BASES
    for name in bases:
        if start := _git("merge-base", "HEAD", name):
            if start == _git("rev-parse", "HEAD"):
                start = _before_window()
            changed = _git("diff", "--name-only", *start[:1]) if start else None
            new = _git("ls-files", "--others", "--exclude-standard")
            if changed is not None and new is not None:
                return frozenset(changed + new)
    return None


def _before_window() -> list[str] | None:
    """Return the newest commit that is older than HEAD by the window, if there is one."""
    date = _git("show", "--no-patch", "--format=%ct", "HEAD")
    return _git("rev-list", "-1", f"--before={int(date[0]) - WINDOW_S}", "HEAD") if date else None


def _git(*arguments: str) -> list[str] | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.splitlines()


@dataclass(frozen=True)
class Selection:
    """What a change needs beside the tests without a marker."""

    files: frozenset[str] | None
    """The files of the change; None: all tests run."""

    def has_framework(self, name: str, environments: frozenset[str]) -> bool:
        """Return whether the test file `test_NAME.py` of these environments runs."""
        if self.files is None or environments == {ALWAYS}:
            return True
        return any(
            SHARED_BY_FRAMEWORKS.match(file)
            or f"/{name}" in file
            or f"/test_{name}." in file
            or file in {f"setup/{each}.lock" for each in environments}
            or (name == TRAINING and NEEDED_BY_TRAINING.match(file))
            or (name == CLIENTS and NEEDED_BY_CLIENTS.match(file))
            or (name == PLATFORMS and NEEDED_BY_PLATFORMS.match(file))
            or (name == GYMS and NEEDED_BY_GYMS.match(file))
            for file in self.files
        )

    def has_example(self, name: str) -> bool:
        """Return whether the tests of the example `examples/NAME` run."""
        return self.trains_example(name) or any(map(SHARED_BY_EXAMPLES.match, self.files or ()))

    def trains_example(self, name: str) -> bool:
        """Return whether the example `examples/NAME` is trained."""
        if self.files is None or name == EXAMPLE:
            return True
        own = (f"examples/{name}/", f"tests/examples/test_{name}.", "tests/example_runs/")
        return any(file.startswith(own) for file in self.files)

    def environments(self) -> Iterator[str]:
        """Yield the environments of the tests of frameworks that run."""
        needed = {
            environment
            for name, environments in framework_tests().items()
            if self.has_framework(name, environments)
            for environment in environments
        }
        yield from (each for each in (ALWAYS, *OTHERS) if each in needed)


@cache
def framework_tests() -> dict[str, frozenset[str]]:
    """Return the environments that each file `test_NAME.py` of tests/frameworks names."""
    names = (ALWAYS, *OTHERS)
    return {
        path.stem.removeprefix("test_"): frozenset(
            each for each in names if f'"{each}"' in path.read_text()
        )
        for path in sorted(FRAMEWORKS.glob("test_*.py"))
    }


@cache
def selection(*, nightly: bool = False) -> Selection:
    """Return the selection of the change, or of the nightly run."""
    return Selection(None if nightly else changed_files())


def spread(cases: Sequence[T], count: int) -> list[T]:
    """Return `count` of the cases at even distances; all of them if there are fewer."""
    count = min(count, len(cases))
    return [cases[index * len(cases) // count] for index in range(count)]


if __name__ == "__main__":
    print(*selection(nightly="--nightly" in sys.argv).environments())
