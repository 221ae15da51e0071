"""Propagates the context to child processes of multiprocessing and to workers of pools."""

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

from ltrain_instrument.identity import identity_from_context, use_context
from ltrain_instrument.lifecycle import capture

W3C_PROPAGATOR = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
"""The format between processes; OTEL_PROPAGATORS only applies to the network."""

Call = Callable[..., Any]


class PropagatedContext:
    """The context in which it was created; pickling keeps its trace and baggage."""

    __slots__ = ("context", "pid")

    def __init__(self, in_context: Context | None = None, pid: int = 0) -> None:
        self.context = context.get_current() if in_context is None else in_context
        self.pid = pid or os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        carrier: dict[str, str] = {}
        W3C_PROPAGATOR.inject(carrier, self.context)
        return PropagatedContext.from_carrier, (carrier, self.pid)

    @classmethod
    def from_carrier(cls, carrier: dict[str, str], pid: int) -> Self:
        """Rebuild a pickled instance."""
        return cls(W3C_PROPAGATOR.extract(carrier, Context()), pid)


class FunctionWithContext:
    """A pool's function with the context of its submitter."""

    __slots__ = ("_function", "_propagated")

    def __init__(self, function: Call) -> None:
        self._function = function
        self._propagated = PropagatedContext()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with use_context(self._propagated.context):
            try:
                return self._function(*args, **kwargs)
            finally:
                self._report_spans()

    def _report_spans(self) -> None:
        """Report the spans of this process: a pool's process outlives the rollout."""
        active, identity = capture.current_capture(), identity_from_context()
        if active is not None and identity is not None and self._propagated.pid != os.getpid():
            active.span_counter.report_if_grown(identity, active.tracer)


def patch_multiprocessing() -> None:
    """Wrap what passes functions to another process, once the agent imports it."""
    wrapt.when_imported("multiprocessing.process")(_wrap_process)
    wrapt.when_imported("multiprocessing.pool")(_wrap_pool)
    wrapt.when_imported("concurrent.futures.process")(_wrap_executor)


def _wrap_process(module: ModuleType) -> None:
    wrapt.wrap_function_wrapper(module, "BaseProcess.start", _start)
    wrapt.wrap_function_wrapper(module, "BaseProcess._bootstrap", _bootstrap)


def _start(call: Call, process: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    process._ltrain_context = PropagatedContext()
    return call(*args, **kwargs)


def _bootstrap(call: Call, process: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    propagated = getattr(process, "_ltrain_context", None)
    if propagated is not None:
        context.attach(propagated.context)
    return call(*args, **kwargs)


def _wrap_pool(module: ModuleType) -> None:
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        wrapt.wrap_function_wrapper(module, f"Pool.{name}", _submit)


def _wrap_executor(module: ModuleType) -> None:
    wrapt.wrap_function_wrapper(module, "ProcessPoolExecutor.submit", _submit)


def _submit(call: Call, pool: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args:
        return call(FunctionWithContext(args[0]), *args[1:], **kwargs)
    return call(
        **{**kwargs, "func": FunctionWithContext(kwargs["func"])} if "func" in kwargs else kwargs
    )
