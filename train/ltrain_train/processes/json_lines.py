"""Messages between a process and its child: one JSON object a line, over pipes of their own.

So the child's output goes to its log only. The end of a pipe is the end of its writer.
"""

import json
import os
import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ltrain_train.processes.children import Child

CHUNK = 1 << 20
"""Bytes of one read."""


def _write(pipe: int, message: Mapping[str, Any]) -> None:
    left = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\n")
    while left:
        left = left[os.write(pipe, left) :]


class JsonChild:
    """A child process and the two pipes to it."""

    def __init__(self, start: Callable[[int, int], Child]) -> None:
        """Start the child.

        Args:
            start: starts it with the descriptors of its ends: of requests, and of answers.
        """
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._lines: deque[bytes] = deque()
        self._partial = b""
        try:
            self.process = start(requests, answers)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(requests)
            os.close(answers)

    def send(self, message: Mapping[str, Any]) -> None:
        """Write a request; raise BrokenPipeError if the child has ended."""
        _write(self._requests, message)

    def poll(self, seconds: float | None) -> bool:
        """Wait up to `seconds` for an answer, and return whether there is one.

        Raises:
            EOFError: when the child has closed its pipe.
        """
        if self._lines:
            return True
        answers = select.poll()  # select.select fails from file descriptor 1024 on
        answers.register(self._answers, select.POLLIN)
        if answers.poll(None if seconds is None else seconds * 1000):
            chunk = os.read(self._answers, CHUNK)
            if not chunk:
                raise EOFError(f"{self.process.name} has closed its pipe.")
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            self._lines.extend(lines)
        return bool(self._lines)

    def receive(self) -> bytes:
        """Wait for an answer, and return its line.

        Raises:
            EOFError: when the child has closed its pipe.
        """
        while not self.poll(None):
            pass
        return self._lines.popleft()

    def receive_all(self) -> Iterator[bytes]:
        """Yield the line of each answer until the child closes its pipe."""
        with suppress(EOFError):
            while True:
                yield self.receive()

    def end_requests(self) -> None:
        """Close the pipe of requests, so that the child reads its end."""
        self._requests = _close(self._requests)

    def end_answers(self) -> None:
        """Close the pipe of answers."""
        self._answers = _close(self._answers)

    def close(self) -> None:
        """Close both pipes."""
        self.end_requests()
        self.end_answers()


def _close(pipe: int) -> int:
    if pipe >= 0:
        os.close(pipe)
    return -1


class JsonPipes:
    """The child's ends of the pipes."""

    def __init__(self, answers: int, requests: int | None = None) -> None:
        for pipe in (answers, requests):
            if pipe is not None:
                os.set_inheritable(pipe, False)  # a child of this process would keep it open
        self._answers, self._requests = answers, requests

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yield each request until the owner closes the pipe or ends."""
        if self._requests is not None:
            with open(self._requests, "rb") as lines:
                yield from map(json.loads, lines)

    def send(self, message: Mapping[str, Any]) -> None:
        """Write an answer at once."""
        _write(self._answers, message)
