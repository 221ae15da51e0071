"""Workers that map a function over jobs: this process, more processes, or a Ray cluster.

Results come in the order of the jobs, and only a few jobs are in memory at once. A worker process
dies when the process that started it ends, however it ends. It ignores ctrl-C, which its parent
handles.
"""

import ctypes
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

from ltrain_transforms.ray_cluster import joined_cluster

Job = TypeVar("Job")
Result = TypeVar("Result")

PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that sets the signal a process gets when its parent dies."""

MAX_QUEUED = 2
"""Jobs that may wait for each worker; a job is a batch of spans in memory."""


class Workers(Protocol):
    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield the results in the order of the jobs, which are taken as workers become free."""
        ...


class LocalWorker:
    """This process."""

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        return map(function, jobs)


class ProcessWorkers:
    """Processes on this machine, one core each; this process does a job that is the only one."""

    def __init__(self, pool: ProcessPoolExecutor, count: int) -> None:
        self._pool, self._count = pool, count

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        waiting: deque[Future[Result]] = deque()
        remaining = iter(jobs)
        first = list(islice(remaining, 2))
        if len(first) == 1:  # the start of a process takes longer than a small batch
            yield function(first[0])
            return
        for job in chain(first, remaining):
            waiting.append(self._pool.submit(function, job))
            if len(waiting) > MAX_QUEUED * self._count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class RayWorkers:
    """The workers of a Ray cluster whose machines share the folder of the dataset, at one path."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        remote = self._ray.remote(function)
        limit = MAX_QUEUED * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        waiting: deque[Any] = deque()
        for job in jobs:
            waiting.append(remote.remote(job))
            if len(waiting) > limit:
                yield self._ray.get(waiting.popleft())
        while waiting:
            yield self._ray.get(waiting.popleft())


@contextmanager
def open_workers(count: int, ray: str | None = None) -> Iterator[Workers]:
    """Start `count` worker processes, or connect to the Ray cluster at the address `ray`.

    A `count` of 0 or 1 is this process.
    """
    if ray is not None:
        otherwise = "use the cores of this machine"
        with joined_cluster(ray, setting="--ray", otherwise=otherwise) as cluster:
            yield RayWorkers(cluster)
    elif count <= 1:
        yield LocalWorker()
    else:
        with _single_threaded():
            # spawn: the threads of polars do not survive a fork
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker)
            try:
                yield ProcessWorkers(pool, count)
            finally:
                pool.shutdown(cancel_futures=True)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Limit polars to one thread in each process that starts during the block."""
    name = "POLARS_MAX_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
