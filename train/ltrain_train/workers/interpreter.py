"""The Python of the agent: ltrain's own, or that of an environment of the agent's own."""

import os
import subprocess
import sys
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from ltrain_instrument.errors import LtrainError

OWN_PYTHON = Path(sys.executable)
"""The Python that runs ltrain."""

_PROBE = """
import ltrain_train.workers.worker
from importlib.metadata import version
print(version("ltrain"))
"""
_PROBE_TIMEOUT = 60.0
"""Seconds; the probe takes 0.3 s on an idle machine."""


class BadInterpreter(LtrainError, ValueError):
    """`rollout.python` cannot run an agent."""


@lru_cache
def find_python(path: str | None, folder: Path) -> Path:
    """Return the Python that runs the agent; without a path, ltrain's own.

    Args:
        path: the interpreter; a relative path starts at `folder`.

    Raises:
        BadInterpreter: when it cannot run, or its environment has not this version of ltrain.
    """
    if path is None:
        return OWN_PYTHON
    # not resolved: the link in a virtual environment is what selects the environment
    python = Path(os.path.abspath(folder / Path(path).expanduser()))
    try:
        done = subprocess.run(
            [python, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT,
            check=False,
            cwd=folder,  # as the agent's processes
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInterpreter(
            f"'{python}' cannot run the agent: {why}. Set `python` to the interpreter of an "
            "environment, e.g. .venv-agent/bin/python."
        ) from error
    own = version("ltrain")
    if done.returncode != 0 or done.stdout.strip() != own:
        lines = done.stderr.strip().splitlines()
        found = lines[-1] if done.returncode and lines else f"it has {done.stdout.strip() or '?'}"
        raise BadInterpreter(
            f"'{python}' cannot run the agent: its environment needs ltrain {own} ({found}). "
            f"Install it there from the same source: {python} -m pip install '/path/to/ltrain'"
        )
    return python
