"""Starts the processes of rollouts on other machines: a gateway, workers and `ltrain rollout`."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from ltrain_collector.access import Kind, sign_kind
from ltrain_train.store import home_secret

AGENTS = Path(__file__).parents[1] / "rollout" / "agents"
WAIT = 60.0
"""Seconds to wait for events that take two on an idle machine."""
LTRAIN = [sys.executable, "-m", "ltrain"]


class Program:
    """A process of ltrain with its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process, self._output = process, output

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str) -> str:
        """Wait for a line that contains a text, and return it."""
        until = time.monotonic() + WAIT
        while not (lines := [line for line in self.output.splitlines() if text in line]):
            assert self.process.poll() is None and time.monotonic() < until, self.output
            time.sleep(0.02)
        return lines[-1]

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT)


class Cluster:
    """A gateway between a policy server and a collector, and the means to start workers for it."""

    def __init__(
        self, stack: ExitStack, folder: Path, upstream: str, collector: str, agents: Path = AGENTS
    ) -> None:
        self._stack, self._folder, self._agents = stack, folder, agents
        self._upstream, self._collector = upstream, collector
        self.options: tuple[str, ...] = ()
        """Options of `ltrain serve`; set before it is started."""
        self.settings: dict[str, str] = {}
        """Variables of all processes; set before they are started."""
        self.home, self._model, self._port = folder / "home", str(_write_model(folder)), 0

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("LTRAIN_")}
        return {
            **kept,
            "LTRAIN_HOME": str(self.home),
            "OTEL_EXPORTER_OTLP_ENDPOINT": self._collector,
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai",
            "PYTHONUNBUFFERED": "1",
            **self.settings,
        }

    def start(self, name: str, *arguments: object, **environ: str) -> Program:
        output = self._folder / f"{name}.out"
        with output.open("wb") as writing:
            process = subprocess.Popen(
                [*LTRAIN, *map(str, arguments)],
                env={**self.environ, **environ},
                cwd=self._agents,
                stdout=writing,
                stderr=subprocess.STDOUT,
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return Program(process, output)

    def start_gateway(self) -> None:
        arguments = ["--port", self._port, "--upstream", self._upstream, *self.options]
        self.gateway = self.start("gateway", "serve", self._model, *arguments)
        self.url = self.gateway.wait_for("gateway ready at").split()[4].removesuffix("/v1,")
        self._port = int(self.url.rpartition(":")[2])
        self._model = "--policy=policy"

    def worker(self, name: str, *agent: str) -> Program:
        key = sign_kind(home_secret(self.home), Kind.WORKER, 600)
        home = str(self._folder / f"{name}-home")  # as on another machine
        arguments = agent or ("--agent", "plain:solve", "--workers", "1", "--concurrency", "4")
        program = self.start(
            name, "worker", self.url, *arguments, LTRAIN_WORKER_KEY=key, LTRAIN_HOME=home
        )
        program.wait_for("worker ready")
        return program

    def rollout(self, tasks: Path, *more: str) -> Program:
        arguments = ["--to", self.url, "--json", *more]
        return self.start("rollout", "rollout", tasks, *arguments)

    def post(self, path: str, key: str, body: dict[str, Any]) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {key}"}
        answer = httpx.post(self.url + path, json=body, headers=headers, trust_env=False)
        return answer.status_code, answer.text


def _write_model(folder: Path) -> Path:
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    return model
