"""The program of vLLM's processes, in vLLM's environment: `python vllm_process.py serve MODEL …`.

vLLM is imported in the process of its server, and then in that of its engine, where multiprocessing
runs this file too. With Python's default threshold a fifth of the time of each import goes into
searches for cycles of objects.
"""

import gc
import os
import sys

GC_THRESHOLD = 100_000
"""Objects that are created between two searches for cycles; Python's default is 700."""

gc.set_threshold(GC_THRESHOLD)
if __name__ == "__main__":
    folder = os.path.dirname(__file__)
    sys.path[:] = [each for each in sys.path if each != folder]  # its modules are not vLLM's
    from vllm.entrypoints.cli.main import main

    main()
