"""Passes trace, baggage and identity from this process to the processes that it starts.

Rules: `os.environ` stays, and so do variables that the agent sets for a child. If the agent gives
the child an environment of its own, ltrain's settings, which may hold keys, are added only if the
child will be instrumented. Secrets of ltrain's own processes are never passed on.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import wrapt
from opentelemetry import context

from ltrain_instrument import patches, settings
from ltrain_instrument.identity import VARIABLES, current_identity, identity_from_context
from ltrain_instrument.lifecycle import capture, propagation
from ltrain_instrument.lifecycle.capture import SHUTDOWN_TIMEOUT, SPAWNED_VARIABLE
from ltrain_instrument.lifecycle.propagation import W3C_PROPAGATOR
from ltrain_instrument.prompts import VARIABLE as PROMPTS_VARIABLE
from ltrain_instrument.prompts import prompt_environment

_TRACE = ("TRACEPARENT", "TRACESTATE")
_BAGGAGE = "BAGGAGE"
_ENV_POSITION = 10
"""Position of `env` among the arguments of `subprocess.Popen`."""

Call = Callable[..., Any]


def attach_parent_context() -> None:
    """Continue the trace and the baggage that the parent put in the environment."""
    carrier = {name.lower(): os.environ.get(name, "") for name in (*_TRACE, _BAGGAGE)}
    if any(carrier.values()):
        context.attach(
            W3C_PROPAGATOR.extract({name: value for name, value in carrier.items() if value})
        )


def child_environment(requested: Mapping[Any, Any] | None) -> dict[Any, Any]:
    """Return the environment of a child process that the agent starts with `requested`.

    None means that the child inherits the environment of this process.
    """
    child = dict(os.environ if requested is None else requested)
    if requested is not None and _auto_instrumentation_folders(child.get("PYTHONPATH")):
        child = _inherited_settings() | child
    # The agent has set a variable that differs from the one of this process
    changed = {name for name, value in child.items() if os.environ.get(str(name)) != value}
    carrier: dict[str, str] = {}
    W3C_PROPAGATOR.inject(carrier)
    headers = {name.upper(): value for name, value in carrier.items()}
    if not changed.intersection(_TRACE):
        child.update({name: headers[name] for name in _TRACE if name in headers})
    if not changed.intersection((_BAGGAGE, *VARIABLES)):
        if identity_from_context() is not None:
            for name in VARIABLES:
                child.pop(name, None)
        child.update(current_identity().environ())
        if _BAGGAGE in headers:
            child[_BAGGAGE] = headers[_BAGGAGE]
    if PROMPTS_VARIABLE not in changed:
        child.update(prompt_environment())
    if settings.HOME.name not in changed:
        # Absolute, because the child may have another working directory
        child[settings.HOME.name] = str(settings.HOME.read().absolute())
    child[SPAWNED_VARIABLE] = "1"
    return child


def patch_subprocess() -> None:
    """Wrap the functions that start a process, once the agent imports them."""
    if patches.SUBPROCESS.is_enabled():
        wrapt.wrap_function_wrapper(subprocess, "Popen.__init__", _popen)
        wrapt.when_imported("asyncio.subprocess")(_wrap_asyncio)
    if patches.MCP_SERVERS.is_enabled():
        wrapt.when_imported("mcp.client.stdio")(_wrap_mcp)
    if patches.EXEC.is_enabled():
        _wrap_exec()
    if patches.MULTIPROCESSING.is_enabled():
        propagation.patch_multiprocessing()


def _popen(call: Call, process: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) > _ENV_POSITION:
        args = (
            *args[:_ENV_POSITION],
            child_environment(args[_ENV_POSITION]),
            *args[_ENV_POSITION + 1 :],
        )
    else:
        kwargs = {**kwargs, "env": child_environment(kwargs.get("env"))}
    return call(*args, **kwargs)


def _wrap_asyncio(module: ModuleType) -> None:
    # uvloop starts processes without subprocess.Popen
    for name in ("create_subprocess_exec", "create_subprocess_shell"):
        wrapt.wrap_function_wrapper(module, name, _create_subprocess)
        package = sys.modules["asyncio"]
        if hasattr(package, name):
            setattr(package, name, getattr(module, name))


def _create_subprocess(
    call: Call, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return call(*args, **{**kwargs, "env": child_environment(kwargs.get("env"))})


def _wrap_exec() -> None:
    original = os.execve

    def execve(path: Any, argv: Any, env: Any) -> NoReturn:
        active = capture.current_capture()
        # os.execvp tries each folder of PATH: only an existing program replaces this process
        if active is not None and (isinstance(path, int) or os.access(path, os.X_OK)):
            capture.run_in_thread(active.shutdown, SHUTDOWN_TIMEOUT)
        try:
            original(path, argv, child_environment(env))
        except BaseException:
            if active is not None:
                active.cancel_shutdown()
            raise

    def execv(path: Any, argv: Any, /) -> NoReturn:
        execve(path, argv, os.environ)

    os.execve, os.execv = execve, execv


def _wrap_mcp(module: ModuleType) -> None:
    if hasattr(module, "stdio_client"):
        wrapt.wrap_function_wrapper(module, "stdio_client", _stdio_client)


def _stdio_client(call: Call, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Start an MCP server with auto-instrumentation: its client passes only seven variables."""
    server = args[0] if args else kwargs["server"]
    path = _auto_instrumentation_folders(os.environ.get("PYTHONPATH"))
    if path and _is_in_this_environment(server.command):
        env = {"PYTHONPATH": os.pathsep.join(path), **(server.env or {})}
        server = server.model_copy(update={"env": env})
    if args:
        return call(server, *args[1:], **kwargs)
    return call(**{**kwargs, "server": server})


def _is_in_this_environment(command: str) -> bool:
    """Return whether a command belongs to this environment; others do not get ltrain's settings."""
    executable = shutil.which(command)
    return (
        executable is not None and Path(executable).absolute().parent == Path(sys.executable).parent
    )


def _auto_instrumentation_folders(path: str | None) -> list[str]:
    """Return the folders of a PYTHONPATH that make a Python process instrument itself at start."""
    launcher = os.path.join("opentelemetry", "instrumentation", "auto_instrumentation")
    return [folder for folder in (path or "").split(os.pathsep) if folder.endswith(launcher)]


def _inherited_settings() -> dict[str, str]:
    prefixes = ("OTEL_", "LTRAIN_", "TRACELOOP_", "OPENINFERENCE_")
    inherited = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    excluded = {*settings.secret_variables(), *VARIABLES}
    return {name: value for name, value in inherited.items() if name not in excluded}
