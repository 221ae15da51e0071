"""A context that goes with the work: into multiprocessing's children and the workers of pools."""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Self

import wrapt
from opentelemetry import context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ltrain_instrument import capture
from ltrain_instrument.ambient import identity_in

W3C = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
"""What crosses from process to process, whatever OTEL_PROPAGATORS says of the network."""

Call = Callable[..., Any]


class Carried:
    """The context of where it was made; pickled, what of it is text."""

    __slots__ = ("context", "pid")

    def __init__(self, where: Context | None = None, pid: int = 0) -> None:
        self.context = context.get_current() if where is None else where
        self.pid = pid or os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        texts: dict[str, str] = {}
        W3C.inject(texts, self.context)
        return Carried.received, (texts, self.pid)

    @classmethod
    def received(cls, texts: dict[str, str], pid: int) -> Self:
        """Unpickle."""
        return cls(W3C.extract(texts, Context()), pid)


class Work:
    """A pool's function with the context of who submitted it."""

    __slots__ = ("_carried", "_work")

    def __init__(self, work: Call) -> None:
        self._work = work
        self._carried = Carried()

    def __call__(self, *given: Any, **named: Any) -> Any:
        token = context.attach(self._carried.context)
        try:
            return self._work(*given, **named)
        finally:
            known, identity = capture.current(), identity_in()
            # A pool's process outlives the rollout: it must say now what it has ended for it
            if known is not None and identity is not None and self._carried.pid != os.getpid():
                known.census.report_grown(identity, known.tracer)
            context.detach(token)


def install() -> None:
    """Wrap what hands work to another process, once the agent imports it."""
    wrapt.when_imported("multiprocessing.process")(_wrap_process)
    wrapt.when_imported("multiprocessing.pool")(_wrap_pool)
    wrapt.when_imported("concurrent.futures.process")(_wrap_executor)


def _wrap_process(module: ModuleType) -> None:
    wrapt.wrap_function_wrapper(module, "BaseProcess.start", _start)
    wrapt.wrap_function_wrapper(module, "BaseProcess._bootstrap", _bootstrap)


def _start(call: Call, process: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    process._ltrain_carried = Carried()
    return call(*given, **named)


def _bootstrap(call: Call, process: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    carried = getattr(process, "_ltrain_carried", None)
    if carried is not None:
        context.attach(carried.context)
    return call(*given, **named)


def _wrap_pool(module: ModuleType) -> None:
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        wrapt.wrap_function_wrapper(module, f"Pool.{name}", _submit)


def _wrap_executor(module: ModuleType) -> None:
    wrapt.wrap_function_wrapper(module, "ProcessPoolExecutor.submit", _submit)


def _submit(call: Call, pool: object, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if given:
        return call(Work(given[0]), *given[1:], **named)
    return call(**{**named, "func": Work(named["func"])} if "func" in named else named)
