"""The Python of vLLM's own environment; nothing here needs more than an agent's environment has."""

import os
import subprocess
import sys
from pathlib import Path

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.settings import VLLM_PYTHON


class NoVllm(LtrainError, FileNotFoundError):
    """No Python with vLLM where one must be."""


def find_python() -> Path:
    """Return the Python that vLLM is installed for, beside this environment where none is named.

    Raises:
        NoVllm: when there is none, or vLLM is not there.
    """
    python = VLLM_PYTHON.read()
    beside = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"  # as `make setup` makes it
    if VLLM_PYTHON.name not in os.environ and beside.is_file():
        python = beside
    mend = (
        "vLLM has an environment of its own: `make setup` makes it, or set "
        f"{VLLM_PYTHON.name} to a Python that has vLLM."
    )
    if python is None or not python.is_file():
        raise NoVllm(f"There is no Python at '{python}'. {mend}")
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    if subprocess.run([python, "-I", "-c", probe], check=False, capture_output=True).returncode:
        raise NoVllm(f"The Python at '{python}' has no vLLM. {mend}")
    return python.absolute()
