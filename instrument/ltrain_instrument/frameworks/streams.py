"""Iterates over a model's stream inside a context manager that covers only its first step.

A generator calls the client in that step, when the span of the model's call is no longer current.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, closing
from typing import Any

_END = object()


def iterate_stream(
    open_stream: Callable[[], Any], first_step: AbstractContextManager[Any]
) -> Iterator[Any]:
    """Yield the chunks of a generator, and close it."""
    with closing(open_stream()) as chunks:
        with first_step:
            first = next(chunks, _END)
        if first is not _END:
            yield first
            yield from chunks


async def aiterate_stream(
    open_stream: Callable[[], Any], first_step: AbstractContextManager[Any]
) -> AsyncIterator[Any]:
    """Yield the chunks of an asynchronous generator, and close it."""
    async with aclosing(open_stream()) as chunks:
        with first_step:
            first = await anext(chunks, _END)
        if first is not _END:
            yield first
            async for chunk in chunks:
                yield chunk
