"""Work spread over processes or machines: results in order, few pieces at a time.

A worker process dies with the one that started it, however that one ends, and ignores ctrl-C,
which is the parent's to hear.
"""

import ctypes
import multiprocessing
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from ltrain_transforms.errors import NoCluster

Piece = TypeVar("Piece")
Result = TypeVar("Result")

PR_SET_PDEATHSIG = 1
"""prctl(2): which signal a process gets when its parent dies."""

AHEAD = 2
"""Pieces that a worker may have waiting: each is a batch of spans in memory."""


KNOCK = 5.0
"""Seconds a cluster's head has to answer."""


class Workers(Protocol):
    def map(self, function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        """Give the results in the order of the pieces, which are taken as there is room."""
        ...


class Here:
    """This process."""

    def map(self, function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        return map(function, pieces)


class Processes:
    """Processes of this machine, a core each."""

    def __init__(self, pool: ProcessPoolExecutor, count: int) -> None:
        self._pool, self._count = pool, count

    def map(self, function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        waiting: deque[Future[Result]] = deque()
        for piece in pieces:
            waiting.append(self._pool.submit(function, piece))
            if len(waiting) > AHEAD * self._count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class Ray:
    """The workers of a Ray cluster, whose machines see the dataset's folder under one path."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def map(self, function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        remote = self._ray.remote(function)
        room = AHEAD * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        waiting: deque[Any] = deque()
        for piece in pieces:
            waiting.append(remote.remote(piece))
            if len(waiting) > room:
                yield self._ray.get(waiting.popleft())
        while waiting:
            yield self._ray.get(waiting.popleft())


@contextmanager
def workers(count: int, ray: str | None = None) -> Iterator[Workers]:
    """Have `count` processes at work, or the cluster at the address `ray`; one is this process."""
    if ray is not None:
        with _cluster(ray) as cluster:
            yield Ray(cluster)
    elif count <= 1:
        yield Here()
    else:
        with _single_threaded():
            context = multiprocessing.get_context("spawn")  # polars' threads do not survive a fork
            pool = ProcessPoolExecutor(count, mp_context=context, initializer=_settle_in)
            try:
                yield Processes(pool, count)
            finally:
                pool.shutdown(cancel_futures=True)


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    import ray

    _reach(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, str(error).split("\n", 1)[0]) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Knock: Ray itself tries for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():  # auto, local: Ray finds it, or says so at once
        return
    try:
        socket.create_connection((host, int(port)), timeout=KNOCK).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, getattr(error, "strerror", None) or str(error)) from error


def _no_cluster(address: str, why: str) -> NoCluster:
    return NoCluster(
        f"No Ray cluster at {address}: {why}. Give --ray the address that `ray start --head` "
        "prints, host:port; without --ray this machine's cores do the work."
    )


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Let polars of the processes that start meanwhile use one thread each."""
    name = "POLARS_MAX_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _settle_in() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
