"""A policy server as a child process, on a unix socket in a folder that only this user enters."""

import os
import re
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from ltrain_train.processes import ChildDied, Children, Command, Supervised, scratch_path

START_TIMEOUT = 900.0
"""Seconds until a server must answer; vLLM first reads the model from disk."""
SOCKET_FILE = "http"
"""Name of the socket in the folder."""
MAX_SOCKET_NAME = 36
"""Maximum bytes of a socket's name in that folder: vLLM names its own sockets by UUIDs."""
FIRST_ERROR = re.compile(
    r"^(?:\([^)]*\) ERROR [^]]*\] )?((?:\w+\.)*\w+(?:Error|Exception): .+)$", re.M
)


class ModelProcess(ABC):
    """One policy server, with a private folder for its sockets below `sockets`."""

    def __init__(
        self, children: Children, product: str, *, name: str, log: Path, sockets: Path
    ) -> None:
        """Describe the server, which is a `product` and serves the model `name`."""
        self.product, self.name, self.log = product, name, log
        self.process = Supervised(children, product, ready=self._answers, timeout=START_TIMEOUT)
        self.folder = scratch_path("vllm", parent=sockets, max_socket_name=MAX_SOCKET_NAME)

    @property
    def socket(self) -> Path:
        """The socket on which the server answers; a restart does not change it."""
        return self.folder / SOCKET_FILE

    def start(self, model: Path) -> None:
        """Start the server with a model and wait until it answers."""
        log_start = self.log.stat().st_size if self.log.exists() else 0
        try:
            self.process.start(
                Command(
                    argv=self.command(model),
                    env=self.environment(),
                    log=self.log,
                    scratch=self.folder,
                )
            )
        except ChildDied as death:
            cause = _first_error(self.log, log_start)
            raise ChildDied(
                f"{death}\nThe first error in it: {cause}" if cause else str(death)
            ) from death

    def kill(self) -> None:
        """Kill the server at once; its watcher sees a death and starts it again."""
        child = self.process.child
        if child.alive:
            os.killpg(child.pid, signal.SIGKILL)

    @abstractmethod
    def command(self, model: Path) -> Sequence[str]:
        """Return the command line."""

    @abstractmethod
    def environment(self) -> Mapping[str, str | None]:
        """Return the variables that are added to the environment."""

    def warm(self, client: httpx.Client) -> bool:
        """Return whether a healthy server is ready for the first call."""
        return True

    def _answers(self) -> bool:
        if not _is_listening(self.socket):
            return False
        transport = httpx.HTTPTransport(uds=str(self.socket))
        url = "http://vllm"
        with httpx.Client(transport=transport, base_url=url, timeout=5, trust_env=False) as client:
            return _is_healthy(client) and self.warm(client)


def _first_error(log: Path, start: int) -> str | None:
    """Return the first error in a log; vLLM's last lines only report that there was one."""
    with log.open("rb") as opened:
        opened.seek(start)
        text = opened.read().decode(errors="replace")
    match = FIRST_ERROR.search(text)
    return match.group(1) if match else None


def _is_listening(path: Path) -> bool:
    """Return whether a server listens on a socket. httpx would leak a socket if none does."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def _is_healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False
