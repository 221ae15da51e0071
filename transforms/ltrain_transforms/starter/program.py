"""The program that stored traces come from: its framework, its function, its Python.

Anyone may write an attribute. A name goes into code only if it is an identifier, and a file is
read, or named as an interpreter, only if this machine has it and it belongs to the user or to root.
"""

import ast
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.starter.frameworks import Framework, find_framework

MAX_SOURCE = 1 << 20
"""Bytes of a module that is parsed."""
MAX_PROCESSES = 5
"""The processes that are looked at, those with most spans first."""
INTERPRETERS = ("process.executable.path", "process.executable.name")
"""Resource attributes with the path of the Python; OpenTelemetry's own detector swaps them."""
PYTHON = re.compile(r"python[\d.]*")
SERVICE = re.compile(r"(?!unknown_service)[A-Za-z][\w.-]{0,60}")
"""Names of services that can be the name of a run; OpenTelemetry's default says nothing."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a task's input that the traces show."""

    module: str
    name: str
    folder: Path | None
    """The folder from which the module is imported; None where its file is not on this machine."""
    is_async: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """The known facts of the program; None or empty where the traces have none."""

    framework: Framework | None = None
    function: Function | None = None
    script: Path | None = None
    python: Path | None = None
    """The interpreter of another environment than ltrain's, on this machine."""
    has_ltrain: bool = False
    """Whether that environment has ltrain."""
    service: str = ""


def find_program(
    store: Store, spans: pl.DataFrame, where: str, parameters: dict[str, str]
) -> Program:
    """Return what the spans, and the resources of their processes, tell of the program.

    Args:
        where: the SQL condition of the spans.
        parameters: those of the condition.
    """
    processes = list(_resources(store, where, parameters))
    script = next(filter(None, map(_script, processes)), None)
    python = next(filter(None, map(_python, processes)), None)
    names = (str(each.get("service.name", "")) for each in processes)
    return Program(
        framework=find_framework(spans["scope"].drop_nulls().unique().to_list()),
        function=next(find_functions(spans, script), None),
        script=script,
        python=python,
        has_ltrain=python is not None and _has_ltrain(python),
        service=next(filter(SERVICE.fullmatch, names), ""),
    )


def _resources(store: Store, where: str, parameters: dict[str, str]) -> Iterator[Mapping[str, str]]:
    rows = store.query(
        "SELECT toJSONString(ResourceAttributes) AS resource, count() AS spans FROM otel.spans "
        f"WHERE {where} AND NOT startsWith(ScopeName, 'ltrain.') "
        f"GROUP BY resource ORDER BY spans DESC, resource LIMIT {MAX_PROCESSES}",
        parameters,
    )
    for text in rows["resource"]:
        yield json.loads(text)


def _own_file(path: Path) -> bool:
    """Return whether a file of this machine belongs to the user or to root."""
    try:
        return path.is_file() and path.stat().st_uid in (0, os.getuid())
    except (OSError, ValueError):  # ValueError: a null byte
        return False


def _script(resource: Mapping[str, str]) -> Path | None:
    """Return the script that a process ran."""
    command = str(resource.get("process.command", ""))
    path = Path(command)
    if not command.endswith(".py") or not path.is_absolute() or not _own_file(path):
        return None
    return None if "site-packages" in path.parts else path


def _python(resource: Mapping[str, str]) -> Path | None:
    """Return the Python of a process, if it is of another environment than ltrain's."""
    for text in (str(resource.get(name, "")) for name in INTERPRETERS):
        path = Path(text)
        is_python = path.is_absolute() and PYTHON.fullmatch(path.name)
        if is_python and _own_file(path) and os.access(path, os.X_OK):
            return None if path.parent == Path(sys.executable).parent else path
    return None


def _has_ltrain(python: Path) -> bool:
    found = python.parent.parent.glob("lib/python*/site-packages/ltrain-*.dist-info")
    return next(found, None) is not None


def find_functions(spans: pl.DataFrame, script: Path | None) -> Iterator[Function]:
    """Yield the functions of root spans, by OpenTelemetry's attributes of code or by their name in
    the script.
    """
    roots = spans.filter(pl.col("parent_id").is_null()).sort("start", descending=True)
    for attributes in roots["attributes"]:
        values = dict(attributes) if not isinstance(attributes, Mapping) else attributes
        if function := _recorded_function(values):
            yield function
        name = values.get("traceloop.entity.name") or ""
        if script is not None and (function := _function_of(script, name)):
            yield function


def _recorded_function(values: Mapping[str, str]) -> Function | None:
    qualified = values.get("code.function.name") or ".".join(
        filter(None, (values.get("code.namespace"), values.get("code.function")))
    )
    module, _, name = qualified.rpartition(".")
    path = Path(values.get("code.file.path") or values.get("code.filepath") or "")
    if path.is_absolute() and path.suffix == ".py" and _own_file(path):
        return None if "site-packages" in path.parts else _function_of(path, name)
    is_module = module not in ("", "__main__") and _are_identifiers(module.split("."))
    return Function(module, name, None) if is_module and _are_identifiers([name]) else None


def _are_identifiers(names: Iterable[str]) -> bool:
    return all(name.isidentifier() and not iskeyword(name) for name in names)


def _function_of(path: Path, name: str) -> Function | None:
    """Return a function of a file, if it takes one argument."""
    if not _are_identifiers([path.stem, name]) or path.stat().st_size > MAX_SOURCE:
        return None
    try:
        statements = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError, OSError):
        return None
    for each in statements:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name:
            is_async = isinstance(each, ast.AsyncFunctionDef)
            return Function(path.stem, name, path.parent, is_async) if _takes_one(each) else None
    return None


def _takes_one(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = function.args
    positional = len(arguments.posonlyargs) + len(arguments.args)
    has_required_keyword = any(default is None for default in arguments.kw_defaults)
    return positional - len(arguments.defaults) <= 1 <= positional and not has_required_keyword
