"""Workers that map a function over jobs: this process, more processes, or a Ray cluster.

Results come in the order of the jobs, and only a few jobs are in memory at once. A worker process
dies when the process that started it ends, however it ends. It ignores ctrl-C, which its parent
handles.
"""

import ctypes
import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

from ltrain_transforms.ray_cluster import joined_cluster

Job = TypeVar("Job")
Result = TypeVar("Result")

PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that sets the signal a process gets when its parent dies."""

ENVIRONMENT = {
    "POLARS_MAX_THREADS": "1",
    "_RJEM_MALLOC_CONF": "background_thread:true,dirty_decay_ms:-1,muzzy_decay_ms:-1",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}
"""Variables of a worker process. Polars computes in one thread, because each process has a core.
The allocators of polars (jemalloc) and of Python (glibc) keep the memory of a batch for the next
one; otherwise the kernel clears the same pages for each batch, a tenth of a build's CPU."""

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
            waiting.append(self._pool.submit(_run_collected, function, job))
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
        with _environment(ENVIRONMENT):
            # spawn: the threads of polars do not survive a fork
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker)
            try:
                yield ProcessWorkers(pool, count)
            finally:
                pool.shutdown(cancel_futures=True)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that start during the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.disable()


def _run_collected(function: Callable[[Job], Result], job: Job) -> Result:
    """Run a job, and look for reference cycles after it instead of while its objects are made."""
    try:
        return function(job)
    finally:
        gc.collect()
        gc.freeze()  # the objects that are left are those of modules: later searches skip them
