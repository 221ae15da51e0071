"""Inside a rollout that only the code knows, submits work with the method of its argument."""

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
CHILD_COMMAND = [sys.executable, __file__, "alone"]


def work(number: int = 0) -> int:
    with trace.get_tracer("agent").start_as_current_span("handed"):
        return number


async def run_asyncio(method: str) -> None:
    if method.endswith("subprocess"):
        await (await asyncio.create_subprocess_exec(*CHILD_COMMAND)).wait()
    elif method == "asyncio shell":
        await (await asyncio.create_subprocess_shell(" ".join(CHILD_COMMAND))).wait()
    elif method == "to_thread":
        await asyncio.to_thread(work)
    else:
        await asyncio.get_running_loop().run_in_executor(None, work)


def run_forked(method: str) -> None:
    child = os.fork()
    if child == 0:
        if method == "fork, exec":
            os.execv(sys.executable, CHILD_COMMAND)
        work()
        sys.exit() if method == "fork, sys.exit" else os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


class Pools:
    """Pools whose workers start before the rollout, as in a server."""

    def __init__(self, method: str) -> None:
        # fork before there are threads
        self.pool = multiprocessing.Pool(1) if method.startswith("Pool") else None
        self.executor = ProcessPoolExecutor(1)
        if method == "ProcessPoolExecutor":
            self.executor.submit(int).result()
        self.threads = ThreadPoolExecutor(1)
        self.threads.submit(int).result()
        self.thread_pool = ThreadPool(1)

    def close(self, method: str) -> None:
        if self.pool is not None:
            if method == "Pool, terminated":
                self.pool.terminate()
            self.pool.close()
            self.pool.join()


def submit(method: str, pools: Pools) -> None:
    if method.startswith("fork, "):
        run_forked(method)
    elif method in ("fork", "forkserver", "spawn"):
        process = START[method](target=work)
        process.start()
        process.join()
    elif pools.pool is not None:
        assert pools.pool.map(work, [3]) == [3]
    elif method == "ProcessPoolExecutor":
        assert pools.executor.submit(work, 3).result() == 3
    elif method == "subprocess":
        subprocess.run(CHILD_COMMAND, check=True)
    elif method == "subprocess, own environment":
        environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH")}
        subprocess.run(CHILD_COMMAND, check=True, env=environment)
    elif method == "mcp":
        client = importlib.import_module("mcp.client.stdio")
        client.stdio_client(client.Server(sys.executable, CHILD_COMMAND[1:]))
    elif method == "thread":
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    elif method == "ThreadPoolExecutor":
        pools.threads.submit(work).result()
    elif method == "ThreadPool":
        pools.thread_pool.apply(work)
    elif method == "uvloop subprocess":
        importlib.import_module("uvloop").run(run_asyncio(method))
    else:
        asyncio.run(run_asyncio(method))


def main(method: str) -> None:
    before = dict(os.environ)
    pools = Pools(method)
    with (
        ltrain.rollout(rollout="r1", attempt=2, task="t"),
        trace.get_tracer("agent").start_as_current_span("parent"),
    ):
        submit(method, pools)
    assert dict(os.environ) == before
    pools.close(method)


if __name__ == "__main__":
    if sys.argv[1] == "alone":
        work()
    else:
        main(sys.argv[1])
