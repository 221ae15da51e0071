"""`make dist-check`: install the wheel of a release in a fresh environment, and use it.

Run `python3.11 -m setup.wheel_check [WHEEL]`; the default is the wheel in dist/. It is installed
alone first, as for an agent, then with the extra `collect`. pip downloads the dependencies, as for
a user.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AGENT = "import ltrain\nfrom ltrain import configure, flush, reward, rollout, task"
"""Code that needs the wheel alone."""
COLLECTOR = (
    "import ltrain_collector.server, ltrain_transforms.datasets, ltrain_transforms.show\n"
    "import ltrain_transforms.exports, ltrain_transforms.starter, ltrain_ui.server\n"
    "import ltrain.doctor\nfrom ltrain import Dataset, Recipe, Store, build, show"
)
"""Code that needs the extra `collect`."""


@dataclass(frozen=True)
class Wheel:
    """The wheel of a release, and the folder of the environment that it is checked in."""

    path: Path
    folder: Path

    def check(self, extra: str, code: str) -> None:
        """Install the wheel with an extra, then run its command, its help and `code`."""
        python, ltrain = (str(self.folder / "bin" / name) for name in ("python", "ltrain"))
        self.run(python, "-m", "pip", "--quiet", "install", f"{self.path}{extra}")
        version = self.path.name.split("-")[1]
        if (output := self.run(ltrain, "--version").strip()) != f"ltrain {version}":
            sys.exit(f"{self.path.name}: `ltrain --version` printed '{output}'.")
        self.run(ltrain, "demo", "--help")
        self.run(python, "-c", code)
        print(f"{self.path.name}{extra} works on Python {sys.version.split()[0]}", flush=True)

    def run(self, *command: str) -> str:
        """Return the output of a command, run outside the repository with a new home.

        Raises:
            SystemExit: when it fails; the message has its errors.
        """
        environ = os.environ | {"LTRAIN_HOME": str(self.folder / "home")}
        done = subprocess.run(
            command, cwd=self.folder, env=environ, capture_output=True, text=True, timeout=1200
        )
        if done.returncode:
            sys.exit(f"{self.path.name}: `{' '.join(command)}` failed:\n{done.stderr}")
        return done.stdout


def find_wheel(paths: Sequence[str]) -> Path:
    """Return the only wheel of `paths`, else of dist/."""
    wheels = [Path(path) for path in paths] or sorted((ROOT / "dist").glob("*.whl"))
    if len(wheels) != 1 or not wheels[0].is_file():
        sys.exit(
            f"Found {len(wheels)} wheels. Build one with `make dist`, or name an existing one."
        )
    return wheels[0].resolve()


def main(paths: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = Wheel(find_wheel(paths), Path(folder))
        wheel.run(sys.executable, "-m", "venv", folder)
        wheel.check("", AGENT)
        wheel.check("[collect]", COLLECTOR)


if __name__ == "__main__":
    main(sys.argv[1:])
