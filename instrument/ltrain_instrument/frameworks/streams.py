"""Iterates over a model's stream inside a context manager that covers only its first step.

A generator calls the client in that step, when the span of the model's call is no longer current.
LangChain's models start a run there and do not pass it on: the run is remembered for that step.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, closing, contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any
from uuid import UUID

_END = object()

Call = Callable[..., Any]

Wrap = Callable[[str, str, Call], None]

_opening_runs: ContextVar[list[UUID] | None] = ContextVar("ltrain-opening", default=None)


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


def run_opening_stream() -> UUID | None:
    """Return the run of the model whose stream is being opened; None if there is none."""
    opened_runs = _opening_runs.get()
    return opened_runs[-1] if opened_runs else None


def patch_chat_models(module: ModuleType, wrap: Wrap) -> None:
    """Wrap the methods with which LangChain's chat models open streams."""
    for name in ("stream", "_iter_v2_events"):
        wrap(module.__name__, f"BaseChatModel.{name}", _stream)
    for name in ("astream", "_aiter_v2_events"):
        wrap(module.__name__, f"BaseChatModel.{name}", _astream)
    managers = "langchain_core.callbacks.manager"
    wrap(managers, "CallbackManager.on_chat_model_start", _on_start)
    wrap(managers, "AsyncCallbackManager.on_chat_model_start", _aon_start)


@contextmanager
def _remember_runs(kwargs: dict[str, Any]) -> Iterator[None]:
    manager = kwargs.get("run_manager")
    token = _opening_runs.set([manager.run_id] if manager is not None else [])
    try:
        yield
    finally:
        _opening_runs.reset(token)


def _stream(
    call: Call, model: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Any]:
    return iterate_stream(lambda: call(*args, **kwargs), _remember_runs(kwargs))


def _astream(
    call: Call, model: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AsyncIterator[Any]:
    return aiterate_stream(lambda: call(*args, **kwargs), _remember_runs(kwargs))


def _on_start(call: Call, manager: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _append_runs(call(*args, **kwargs))


async def _aon_start(
    call: Callable[..., Awaitable[Any]],
    manager: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    return _append_runs(await call(*args, **kwargs))


def _append_runs(runs: list[Any]) -> list[Any]:
    opened_runs = _opening_runs.get()
    if opened_runs is not None:
        opened_runs += [run.run_id for run in runs]
    return runs
