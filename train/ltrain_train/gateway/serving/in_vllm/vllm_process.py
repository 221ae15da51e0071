"""The program of vLLM's processes, in vLLM's environment: `python vllm_process.py serve MODEL …`.

It starts vLLM sooner than vLLM's own command:

* Python searches less often for cycles of objects: with its default threshold the searches take a
  fifth of the time of importing vLLM.
* On a CPU, vLLM and the model's class are imported once, by the server (`import_once`).

vLLM's processes find `staged_weights` beside it: Python adds this folder to their paths.
"""

import gc
import sys
from functools import partial
from multiprocessing import get_context

GC_THRESHOLD = 100_000
"""Objects that are created between two searches for cycles; Python's default is 700."""


def is_forkable() -> bool:
    """Return whether a fork of the server can run the engine; with CUDA or on macOS it cannot."""
    from vllm.platforms import current_platform

    return sys.platform == "linux" and bool(current_platform.is_cpu())


def import_once() -> None:
    """Make vLLM use the imports of the server's process in two more places.

    * The process of the engine is a fork of the server's. By itself vLLM starts Python anew for
      each process on a CPU, because OpenMP reads the cores of a worker when it is loaded. The
      engine reads none, and its workers still start anew.
    * The server inspects the model's class itself. vLLM starts a process for that, whose result it
      keeps on disk, so that CUDA is not initialized in the server.
    """
    from vllm.model_executor.models import registry
    from vllm.v1.engine import utils

    utils.get_mp_context = partial(get_context, "fork")
    registry._run_in_subprocess = lambda inspect: inspect()


gc.set_threshold(GC_THRESHOLD)
if __name__ == "__main__":
    if is_forkable():
        import_once()
    from vllm.entrypoints.cli.main import main

    main()
