"""Call a model in a loop and print CPU milliseconds per call: `calling.py CLIENT LETTERS`."""

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

WARM, CALLS = 100, 1000


def make_caller(client: str, letters: int) -> Callable[[], Any]:
    """Return a function that makes one call with a prompt of `letters` characters."""
    text = "lorem ipsum dolor " * (letters // 18)
    if client == "openai":
        from openai import OpenAI

        completions = OpenAI(max_retries=0).chat.completions
        messages: Any = [{"role": "system", "content": "s"}, {"role": "user", "content": text}]
        return lambda: completions.create(model="fake", messages=messages)
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="fake", max_retries=0)
    return lambda: model.invoke([("system", "s"), ("user", text)])


def main() -> None:
    call = make_caller(sys.argv[1], int(sys.argv[2]))
    flush = getattr(_provider(), "force_flush", lambda: None)
    for _ in range(WARM):
        call()
    flush()
    gc.collect()
    before = time.process_time()
    for _ in range(CALLS):
        call()
    flush()  # the export is part of the cost
    print(1e3 * (time.process_time() - before) / CALLS)


def _provider() -> Any:
    from opentelemetry import trace

    return trace.get_tracer_provider()


if __name__ == "__main__":
    main()
