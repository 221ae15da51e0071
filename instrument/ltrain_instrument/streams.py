"""Which LangChain model opens a stream: its run announces itself to nobody further in.

`llm.stream()` starts a run and asks the client within the first step of its generator, and passes
no run manager on. For the length of that step, and no longer, the run that starts is remembered.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any
from uuid import UUID

Call = Callable[..., Any]
Wrap = Callable[[str, str, Call], None]

_END = object()
_opening: ContextVar[list[UUID] | None] = ContextVar("ltrain-opening", default=None)


def opening() -> UUID | None:
    """Give the run of the model whose stream is being opened here; None where none is."""
    started = _opening.get()
    return started[-1] if started else None


def wrap_models(module: ModuleType, wrap: Wrap) -> None:
    """Listen where LangChain's chat models open streams."""
    for name in ("stream", "_iter_v2_events"):
        wrap(module.__name__, f"BaseChatModel.{name}", _stream)
    for name in ("astream", "_aiter_v2_events"):
        wrap(module.__name__, f"BaseChatModel.{name}", _astream)
    managers = "langchain_core.callbacks.manager"
    wrap(managers, "CallbackManager.on_chat_model_start", _started)
    wrap(managers, "AsyncCallbackManager.on_chat_model_start", _astarted)


@contextmanager
def _listening(named: dict[str, Any]) -> Iterator[None]:
    manager = named.get("run_manager")
    token = _opening.set([manager.run_id] if manager is not None else [])
    try:
        yield
    finally:
        _opening.reset(token)


def _stream(
    call: Call, model: object, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Iterator[Any]:
    with closing(call(*arguments, **named)) as chunks:
        with _listening(named):
            first = next(chunks, _END)
        if first is not _END:
            yield first
            yield from chunks


async def _astream(
    call: Call, model: object, arguments: tuple[Any, ...], named: dict[str, Any]
) -> AsyncIterator[Any]:
    async with aclosing(call(*arguments, **named)) as chunks:
        with _listening(named):
            first = await anext(chunks, _END)
        if first is not _END:
            yield first
            async for chunk in chunks:
                yield chunk


def _started(call: Call, manager: object, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return _remember(call(*arguments, **named))


async def _astarted(
    call: Callable[..., Awaitable[Any]],
    manager: object,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> Any:
    return _remember(await call(*arguments, **named))


def _remember(runs: list[Any]) -> list[Any]:
    started = _opening.get()
    if started is not None:
        started += [run.run_id for run in runs]
    return runs
