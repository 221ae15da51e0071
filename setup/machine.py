"""The requirements of the set-up on this machine, checked before anything is installed.

It uses only the standard library and the syntax of any Python 3, since the user's interpreter runs
it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

PYTHONS = ((3, 11), (3, 12))
"""The versions that every lock file installs on; the first one resolves them."""
AGENT_PYTHONS = ((3, 13),)
"""Further versions of environments that do not train: of agents, and of the extra `collect`."""
GLIBC = (2, 28)
GIGABYTE = 1e9


def faults(root: Path, need: float, *, cpu_models: bool = True) -> list[str]:
    """Return a sentence for each requirement that a set-up of `need` gigabytes in `root` lacks.

    `cpu_models`: the set-up includes vLLM for CPUs.
    """
    checks = [_python(), _venv(), _platform(), _libc(), _disk(root, need)]
    if cpu_models:
        checks.append(_processor())
    return [fault for fault in checks if fault]


def node_faults() -> list[str]:
    """Return a sentence if the machine lacks Node.js for the packages of npm."""
    if shutil.which("npm"):
        return []
    return ["There is no npm; the coding agents need Node.js 20 or newer. Install it."]


def interpreter(version: str) -> str:
    """Return a Python of a version, such as 3.12, that makes environments; empty: there is none.

    It is this one, that of the setting, such as PYTHON312, or that of the PATH.
    """
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    path = os.environ.get(_setting(version), f"python{version}")
    check = f"import ensurepip, sys, venv; sys.exit(sys.version[:{len(version)}] != '{version}')"
    try:
        done = subprocess.run([path, "-c", check], capture_output=True, check=False)
    except OSError:
        return ""
    return "" if done.returncode else path


def interpreter_fault(version: str) -> str:
    """Return a sentence if the machine lacks the Python of a version."""
    if interpreter(version):
        return ""
    name = f"python{version}"
    return (
        f"There is no {name} that can make environments. Install it (Debian: {name}-venv), or name "
        f"it: {_setting(version)}=/path/to/{name}"
    )


def _setting(version: str) -> str:
    return f"PYTHON{version.replace('.', '')}"


def _python() -> str:
    if sys.version_info[:2] in PYTHONS:
        return ""
    version = platform.python_version()
    return (
        f"This is Python {version} ({sys.executable}); the locks are for CPython 3.11 and "
        "3.12. Install one of them, or name it: make setup PYTHON=/path/to/python3.11"
    )


def _venv() -> str:
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        return (
            f"{sys.executable} has no module {error.name}, so it cannot make environments. "
            "On Debian and Ubuntu: sudo apt install python{}.{}-venv".format(*sys.version_info[:2])
        )
    return ""


def _platform() -> str:
    system, machine = platform.system(), platform.machine()
    if (system, machine) == ("Linux", "x86_64"):
        return ""
    return f"This is {system} on {machine}; the locked wheels are for Linux on x86_64. Use one."


def _libc() -> str:
    name, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if platform.system() != "Linux" or (name == "glibc" and numbers >= GLIBC):
        return ""
    return (
        f"The C library is {name or 'not glibc'} {version}; the locked wheels need glibc 2.28 or "
        "newer (Debian 10, Ubuntu 20.04, RHEL 8). Use such a system."
    )


def _processor() -> str:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""  # not readable: vLLM itself checks
    if "avx2" in flags or "flags" not in flags:
        return ""
    return "This processor has no AVX2, which vLLM's CPU kernels need. Use a newer one."


def _disk(root: Path, need: float) -> str:
    free = shutil.disk_usage(root).free / GIGABYTE
    if free >= need:
        return ""
    return (
        f"Only {free:.1f} GB are free in {root}; the set-up takes {need:.1f} GB. "
        "Free disk space, or clone onto a larger disk."
    )


def size(folder: Path) -> float:
    """Return the size of `folder` on disk in gigabytes; 0 if it does not exist."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # a running installer removes its temporary files
    return total / GIGABYTE
