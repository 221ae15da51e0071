"""Inside a rollout that only the code knows, hands one piece of work on in the way it is told."""

import asyncio
import importlib
import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

from opentelemetry import trace

import ltrain

START = {
    "fork": multiprocessing.get_context("fork").Process,
    "forkserver": multiprocessing.get_context("forkserver").Process,
    "spawn": multiprocessing.get_context("spawn").Process,
}
ALONE = [sys.executable, __file__, "alone"]


def work(number: int = 0) -> int:
    with trace.get_tracer("agent").start_as_current_span("handed"):
        return number


async def waiting(way: str) -> None:
    if way.endswith("subprocess"):
        await (await asyncio.create_subprocess_exec(*ALONE)).wait()
    elif way == "asyncio shell":
        await (await asyncio.create_subprocess_shell(" ".join(ALONE))).wait()
    elif way == "to_thread":
        await asyncio.to_thread(work)
    else:
        await asyncio.get_running_loop().run_in_executor(None, work)


def forked(way: str) -> None:
    child = os.fork()
    if child == 0:
        if way == "fork, exec":
            os.execv(sys.executable, ALONE)
        work()
        sys.exit() if way == "fork, sys.exit" else os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


class Warm:
    """Pools whose workers start before the rollout does, as a server's do."""

    def __init__(self, way: str) -> None:
        # forks first: later there are threads
        self.pool = multiprocessing.Pool(1) if way.startswith("Pool") else None
        self.executor = ProcessPoolExecutor(1)
        if way == "ProcessPoolExecutor":
            self.executor.submit(int).result()
        self.threads = ThreadPoolExecutor(1)
        self.threads.submit(int).result()
        self.thread_pool = ThreadPool(1)

    def close(self, way: str) -> None:
        if self.pool is not None:
            if way == "Pool, terminated":
                self.pool.terminate()
            self.pool.close()
            self.pool.join()


def hand(way: str, warm: Warm) -> None:
    if way.startswith("fork, "):
        forked(way)
    elif way in ("fork", "forkserver", "spawn"):
        process = START[way](target=work)
        process.start()
        process.join()
    elif warm.pool is not None:
        assert warm.pool.map(work, [3]) == [3]
    elif way == "ProcessPoolExecutor":
        assert warm.executor.submit(work, 3).result() == 3
    elif way == "subprocess":
        subprocess.run(ALONE, check=True)
    elif way == "subprocess, own environment":
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH")}
        subprocess.run(ALONE, check=True, env=kept)
    elif way == "mcp":
        client = importlib.import_module("mcp.client.stdio")
        client.stdio_client(client.Server(sys.executable, ALONE[1:]))
    elif way == "thread":
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    elif way == "ThreadPoolExecutor":
        warm.threads.submit(work).result()
    elif way == "ThreadPool":
        warm.thread_pool.apply(work)
    elif way == "uvloop subprocess":
        importlib.import_module("uvloop").run(waiting(way))
    else:
        asyncio.run(waiting(way))


def main(way: str) -> None:
    before = dict(os.environ)
    warm = Warm(way)
    with (
        ltrain.rollout(rollout="r1", attempt=2, task="t"),
        trace.get_tracer("agent").start_as_current_span("parent"),
    ):
        hand(way, warm)
    assert dict(os.environ) == before
    warm.close(way)


if __name__ == "__main__":
    if sys.argv[1] == "alone":
        work()
    else:
        main(sys.argv[1])
