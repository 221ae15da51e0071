"""What a process takes from its parent and hands to its children: trace, baggage and identity.

Rules: `os.environ` is never changed, and what the agent itself sets for a child stays. Where it
gives the child an environment of its own, settings, which may hold keys, go along only if the child
will be instrumented; the secrets of ltrain's own processes never do.
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

from ltrain_instrument import capture, carried, settings
from ltrain_instrument.ambient import identity_here, identity_in
from ltrain_instrument.capture import LAST_BREATH, SPAWNED
from ltrain_instrument.carried import W3C
from ltrain_instrument.identity import VARIABLES

_TRACE = ("TRACEPARENT", "TRACESTATE")
_BAGGAGE = "BAGGAGE"
_ENV = 10
"""Where `env` stands among the arguments of `subprocess.Popen`."""

Call = Callable[..., Any]


def take() -> None:
    """Continue the trace and the baggage that the environment hands to this process."""
    given = {name.lower(): os.environ.get(name, "") for name in (*_TRACE, _BAGGAGE)}
    if any(given.values()):
        context.attach(W3C.extract({name: value for name, value in given.items() if value}))


def environment(wanted: Mapping[Any, Any] | None) -> dict[Any, Any]:
    """Return the environment of a child that the agent runs in `wanted`; None: in its own."""
    child = dict(os.environ if wanted is None else wanted)
    if wanted is not None and _launchers(child.get("PYTHONPATH")):
        child = _settings() | child
    # Where a variable differs from this process's, the agent means it
    meant = {name for name, value in child.items() if os.environ.get(str(name)) != value}
    carrier: dict[str, str] = {}
    W3C.inject(carrier)
    handed = {name.upper(): value for name, value in carrier.items()}
    if not meant.intersection(_TRACE):
        child.update({name: handed[name] for name in _TRACE if name in handed})
    if not meant.intersection((_BAGGAGE, *VARIABLES)):
        if identity_in() is not None:
            for name in VARIABLES:
                child.pop(name, None)
        child.update(identity_here().environ())
        if _BAGGAGE in handed:
            child[_BAGGAGE] = handed[_BAGGAGE]
    if settings.HOME.name not in meant:
        child[settings.HOME.name] = str(settings.HOME.read().absolute())  # for a child elsewhere
    child[SPAWNED] = "1"
    return child


def install() -> None:
    """Wrap the ways to start a process, once the agent imports them."""
    wrapt.wrap_function_wrapper(subprocess, "Popen.__init__", _popen)
    wrapt.when_imported("asyncio.subprocess")(_wrap_asyncio)
    wrapt.when_imported("mcp.client.stdio")(_wrap_mcp)
    _wrap_exec()
    carried.install()


def _popen(call: Call, process: object, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if len(given) > _ENV:
        given = (*given[:_ENV], environment(given[_ENV]), *given[_ENV + 1 :])
    else:
        named = {**named, "env": environment(named.get("env"))}
    return call(*given, **named)


def _wrap_asyncio(module: ModuleType) -> None:
    # uvloop starts processes without subprocess.Popen
    for name in ("create_subprocess_exec", "create_subprocess_shell"):
        wrapt.wrap_function_wrapper(module, name, _create_subprocess)
        package = sys.modules["asyncio"]
        if hasattr(package, name):
            setattr(package, name, getattr(module, name))


def _create_subprocess(
    call: Call, module: object, given: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    return call(*given, **{**named, "env": environment(named.get("env"))})


def _wrap_exec() -> None:
    execute = os.execve

    def execve(path: Any, argv: Any, env: Any) -> NoReturn:
        known = capture.current()
        # os.execvp tries every folder of PATH: only the one that there is ends this program
        if known is not None and (isinstance(path, int) or os.access(path, os.X_OK)):
            capture.aside(known.farewell, LAST_BREATH)
        try:
            execute(path, argv, environment(env))
        except BaseException:
            if known is not None:
                known.stay()
            raise

    def execv(path: Any, argv: Any, /) -> NoReturn:
        execve(path, argv, os.environ)

    os.execve, os.execv = execve, execv


def _wrap_mcp(module: ModuleType) -> None:
    if hasattr(module, "stdio_client"):
        wrapt.wrap_function_wrapper(module, "stdio_client", _stdio_client)


def _stdio_client(call: Call, module: object, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Start an MCP server with what instruments it: its client passes seven variables only."""
    server = given[0] if given else named["server"]
    path = _launchers(os.environ.get("PYTHONPATH"))
    if path and _is_ours(server.command):
        env = {"PYTHONPATH": os.pathsep.join(path), **(server.env or {})}
        server = server.model_copy(update={"env": env})
    if given:
        return call(server, *given[1:], **named)
    return call(**{**named, "server": server})


def _is_ours(command: str) -> bool:
    """Return whether a command is of this environment; others need none of our settings."""
    found = shutil.which(command)
    return found is not None and Path(found).absolute().parent == Path(sys.executable).parent


def _launchers(path: str | None) -> list[str]:
    """Return the folders of a PYTHONPATH that make a Python instrument itself as it starts."""
    launcher = os.path.join("opentelemetry", "instrumentation", "auto_instrumentation")
    return [folder for folder in (path or "").split(os.pathsep) if folder.endswith(launcher)]


def _settings() -> dict[str, str]:
    prefixes = ("OTEL_", "LTRAIN_", "TRACELOOP_", "OPENINFERENCE_")
    found = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    apart = {*settings.SECRETS, *VARIABLES}
    return {name: value for name, value in found.items() if name not in apart}
