"""Starts `ltrain run` with fake servers at its borders, kills it, and reads what it left."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import psutil
from tests.chaos.driver import Project, Run, until
from tests.fake_backend import write_model

from ltrain_train.policy import Policies
from ltrain_train.processes import free_port

HERE = Path(__file__).parent
TESTS = HERE.parents[2]
POLICY = "chaos"


class Host:
    """A process that forks a process for each command, one after the other."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "start.py")]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )

    def start(self, **command: Any) -> "Forked":
        """Start a command when the one before has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(command)}\n")
        return Forked(int(self._process.stdout.readline()), self._process.stdout)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Forked:
    """A process that the host has forked, with the methods of `subprocess.Popen`."""

    def __init__(self, pid: int, answers: IO[str]) -> None:
        self.pid, self.returncode = pid, cast(int | None, None)
        self._answers = answers

    def poll(self) -> int | None:
        return self.returncode if self.returncode is not None else self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and self._read(timeout) is None:
            raise subprocess.TimeoutExpired("ltrain", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _read(self, seconds: float | None) -> int | None:
        answers = select.poll()  # select.select() takes no descriptor above 1023
        answers.register(self._answers, select.POLLIN)
        if answers.poll(None if seconds is None else 1000 * seconds):
            self.returncode = int(self._answers.readline())
        return self.returncode


@dataclass
class LightProject(Project):
    """A folder with a store, a gateway and a run, whose vLLM and learner are fakes."""

    recipe: str = ""
    arguments: tuple[str, ...] = ()
    """Of `ltrain run`, after the recipe."""
    serve_arguments: tuple[str, ...] = ()
    """Of `ltrain serve`."""
    host: Host = field(init=False)
    ports: list[int] = field(init=False)
    _began: float = 0.0
    """When the latest command was started."""
    services: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def prepare_files(self) -> None:
        """Write everything that a run needs."""
        self.folder.mkdir(parents=True)
        (self.folder / "ltrain.toml").write_text(self.recipe)
        shutil.copy(HERE / "kills_agent.py", self.folder)
        for name, count in (("tasks", 8), ("test", 2)):
            tasks = [{"id": f"t{number}", "input": f"w{number} w7"} for number in range(count)]
            text = "".join(f"{json.dumps(task)}\n" for task in tasks)
            (self.folder / f"{name}.jsonl").write_text(text)
        self._write_program("vllm", f'[ "$1" = -I ] && exit 0\nset -- {TESTS}/fake_vllm.py "$@"')
        self.host = Host()
        self.ports = [free_port() for _ in range(3)]
        otlp, store, gateway = (f"http://127.0.0.1:{port}" for port in self.ports)
        inherited = {
            name: text for name, text in os.environ.items() if not name.startswith("LTRAIN_")
        }
        self.environ = {
            **inherited,
            "LTRAIN_HOME": str(self.home),
            "LTRAIN_STORE": store,
            "LTRAIN_GATEWAY": gateway,
            "LTRAIN_LEARNER_BACKEND": "fake_backend",
            "PYTHONPATH": str(TESTS),
            "LTRAIN_VLLM_PYTHON": str(self.folder / "vllm"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.temporary),
        }
        Policies(self.home).register(POLICY, write_model(self.folder / "model", []))

    def _write_program(self, name: str, line: str) -> None:
        program = self.folder / name
        program.write_text(f'#!/bin/sh\n{line}\nexec {sys.executable} "$@"\n')
        program.chmod(0o755)

    def start_services(self) -> None:
        """Start the store and the gateway, if they do not run, and wait for both."""
        otlp, store, gateway = map(str, self.ports)
        ports = ("--otlp-port", otlp, "--grpc-port", "0", "--http-port", store)
        self._serve("store", "up", "--dir", str(self.home / "store"), *ports)
        self._serve(
            "gateway", "serve", "--policy", POLICY, "--port", gateway, *self.serve_arguments
        )
        until(lambda: _answers(f"http://127.0.0.1:{store}/ping", b"Ok"), "the store")
        until(lambda: _answers(f"http://127.0.0.1:{gateway}/health", b'"ready"'), "the gateway")

    def _serve(self, name: str, *arguments: str) -> None:
        if name in self.services and self.services[name].poll() is None:
            return
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "ltrain", *arguments]
            self.services[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environ, cwd=self.folder
            )

    def start_run(self, crash: str = "") -> Run:
        """Start the run, or the same command again.

        Args:
            crash: the write before which it is killed, as `start.py` has it.
        """
        self._began = time.time()
        output = self.folder / f"out-{len(self.runs)}"
        arguments = ["run", str(self.folder / "ltrain.toml"), "--json", *self.arguments]
        process = self.host.start(
            arguments=arguments,
            environ=self.environ,
            folder=str(self.folder),
            output=str(output),
            crash=crash,
        )
        self.runs.append(Run(cast(Any, process), output))
        return self.runs[-1]

    def shows_work(self) -> bool:
        """Return whether the command has begun to write: a dataset, an attempt or a version."""
        files = (*self.home.glob("runs/*/*.jsonl"), *self.home.glob("datasets/*"))
        return any(file.stat().st_mtime > self._began for file in files)

    def count_loads(self) -> int:
        """Return how often vLLM has begun to load weights, if that takes time."""
        log = self.file("logs/vllm.log")
        return log.read_text().count("reloading") if log.exists() else 0

    def check_commands(self) -> None:
        """Check that the commands that list versions work."""
        current = Policies(self.home).current(POLICY)
        for words in (("show", f"{POLICY}@{current}"), ("policy", "list")):
            done = subprocess.run(
                [sys.executable, "-m", "ltrain", *words],
                env=self.environ,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, ""), words

    def kill_everything(self) -> None:
        """End all processes, those of the services too, without a chance to clean up."""
        for end in (signal.SIGSTOP, signal.SIGKILL):  # none sees another one's death
            for process in self.processes():
                with suppress(psutil.Error):
                    process.send_signal(end)
        if self.runs:
            self.runs[-1].process.kill()
        for service in self.services.values():
            service.wait()

    def close(self) -> None:
        super().close()
        for service in self.services.values():
            service.kill()
            service.wait()
        self.host.close()


def _answers(url: str, text: bytes) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return text in answer.read()
    except OSError:
        return False


@contextmanager
def opened_project(folder: Path, **options: Any) -> Iterator[LightProject]:
    """Yield a project in a new folder, and kill its processes; the options are its fields."""
    # the path of the home must be short enough for sockets
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as home:
        made = LightProject(folder, 0, Path(home), **options)
        made.prepare_files()
        try:
            yield made
        finally:
            made.close()
