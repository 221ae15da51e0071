"""Finds the Python of vLLM's own environment, without importing vLLM."""

import os
import subprocess
import sys
from pathlib import Path

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.settings import VLLM_PYTHON


class NoVllm(LtrainError, FileNotFoundError):
    """There is no Python that has vLLM."""


def find_python() -> Path:
    """Return the Python of LTRAIN_VLLM_PYTHON, by default of `.venv-vllm` beside this environment.

    Raises:
        NoVllm: when there is no such Python, or it has no vLLM.
    """
    python = VLLM_PYTHON.read()
    beside = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"  # as `make setup` makes it
    if VLLM_PYTHON.name not in os.environ and beside.is_file():
        python = beside
    advice = (
        "vLLM needs its own environment: make it with `make setup`, or set "
        f"{VLLM_PYTHON.name} to a Python that has vLLM."
    )
    if python is None or not python.is_file():
        raise NoVllm(f"There is no Python at '{python}'. {advice}")
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    if subprocess.run([python, "-I", "-c", probe], check=False, capture_output=True).returncode:
        raise NoVllm(f"The Python at '{python}' has no vLLM. {advice}")
    return python.absolute()
