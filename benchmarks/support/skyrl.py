"""A server of SkyRL 0.4.0 on the CPU, from the environment of `make setup-skyrl`."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from ltrain_train.processes import free_port

PYTHON = Path(__file__).parents[2] / ".venv-skyrl" / "bin" / "python"
"""Python 3.12 with the packages of `setup/skyrl.lock`."""
KEY = "tml-local"
"""A server of one's own takes any key that begins so."""
UV = """#!/bin/bash
while [ $# -gt 0 ] && [ "$1" != -m ]; do shift; done
exec "{python}" "$@"
"""
"""A stand-in of uv, with which the server starts its engine."""
PARENT = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[3:]))"
"""The server reads its parent's command line for the options of uv."""


@dataclass(slots=True)
class SkyRL:
    """A server with its data in a folder, which another start finds again."""

    model: Path
    folder: Path
    backend: Mapping[str, int]
    """The settings of the JAX backend."""
    python: Path = PYTHON
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """The file with the output of all starts."""
        return self.folder / "skyrl.log"

    def __enter__(self) -> Self:
        if not self.python.exists():
            raise SystemExit(f"There is no {self.python}. Run: make setup-skyrl")
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        command = ["uv", "-c", PARENT, "run", "--", str(self.python.absolute()), *self._words()]
        with self.log.open("a") as output:
            self._process = subprocess.Popen(
                command,
                executable=self.python.absolute(),
                env=self._environment(),
                stdout=output,
                stderr=output,
                process_group=0,
            )
        while not self._answers():
            if self._process.poll() is not None:
                raise SystemExit(self.log.read_text()[-4000:])
            time.sleep(1.0)

    def kill(self) -> None:
        """Kill the server and its engine, as the kernel does when the memory is used up."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def count(self, kind: str) -> int:
        """Return the requests of a kind, such as `optim_step`, that the server has answered."""
        return self.log.read_bytes().count(f"/api/v1/{kind} HTTP".encode())

    def _words(self) -> list[str]:
        options = {
            "host": "127.0.0.1",
            "port": self.port,
            "base-model": self.model.absolute(),
            "backend": "jax",
            "backend-config": json.dumps(dict(self.backend)),
            "checkpoints-base": self.folder / "checkpoints",
            "database-url": f"sqlite:///{self.folder}/tinker.db",
            # a killed process leaves its places for adapters until its session is stale
            "session-timeout-sec": 90,
            "session-cleanup-interval-sec": 10,
        }
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        return ["-m", "skyrl.tinker.api", *words]

    def _environment(self) -> dict[str, str]:
        shim = self.folder / "bin" / "uv"
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(UV.format(python=self.python.absolute()))
        shim.chmod(0o755)
        # each program takes up to a minute to compile
        compiled = self.python.absolute().parents[1] / "compiled"
        cache = {"JAX_COMPILATION_CACHE_DIR": str(compiled)}
        path = f"{shim.parent}:{os.environ['PATH']}"
        return os.environ | cache | {"JAX_PLATFORMS": "cpu", "PATH": path}

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v1/healthz", timeout=5).is_success
        except httpx.HTTPError:
            return False
