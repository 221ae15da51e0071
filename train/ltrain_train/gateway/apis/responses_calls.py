"""The calls of each kind of tool: items of the Responses API, and arguments of a function."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ltrain_train.gateway.apis.body import JsonObject

Item = Mapping[str, Any]

SHELL_FIELDS = {
    "timeout_ms": {"type": "integer", "description": "Maximum milliseconds of the run."},
}


@dataclass(frozen=True, slots=True, eq=False)
class CallKind:
    """A kind of tool that the client runs."""

    tool: str
    """The type of the tool in a request."""
    item: str
    """The type of the items of its calls."""
    output: str
    """The type of the items of their outputs."""
    prefix: str
    """The beginning of an item's id."""
    read: Callable[[Item], str]
    """Returns the arguments of the function call that was converted to an item."""
    write: Callable[[str], JsonObject | None]
    """Returns the fields of the item with these arguments; None if they do not have its form."""
    text: str = ""
    """The item's field that a stream sends in pieces; empty if the stream sends the item as a
    whole."""
    event: str = ""
    """The name of the events with these pieces."""
    description: str = ""
    parameters: JsonObject | None = None
    """The schema of the arguments, of a tool whose request has none."""


def _dump(value: Any) -> str:
    """Return JSON as models write it."""
    return json.dumps(value, ensure_ascii=False)


def _object(text: str) -> JsonObject | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _known(fields: Any) -> JsonObject:
    """Return the fields of an item's object that have a value, without its type `exec`."""
    values = fields.items() if isinstance(fields, dict) else ()
    return {name: value for name, value in values if value not in (None, {}, "exec")}


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _read_arguments(item: Item) -> str:
    arguments = item.get("arguments")
    return arguments if isinstance(arguments, str) else _dump(arguments or {})


def _write_input(text: str) -> JsonObject:
    value = (_object(text) or {}).get("input")
    return {"input": value if isinstance(value, str) else text}


def _write_exec(text: str) -> JsonObject | None:
    action = _object(text)
    if action is None or not _is_texts(action.get("command")):
        return None
    return {"action": {"type": "exec", "env": {}, **action}}


def _write_commands(text: str) -> JsonObject | None:
    action = _object(text)
    return {"action": action} if action and _is_texts(action.get("commands")) else None


def _write_operation(text: str) -> JsonObject | None:
    operation = _object(text) or {}
    needed = ["path"] if operation.get("type") == "delete_file" else ["path", "diff"]
    if operation.get("type") not in PATCH_OPERATIONS or not _is_texts(
        [operation.get(name) for name in needed]
    ):
        return None
    return {"operation": operation}


def _write_search(text: str) -> JsonObject | None:
    arguments = _object(text)
    return None if arguments is None else {"execution": "client", "arguments": arguments}


def _schema(required: list[str], **properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": properties, "required": required}


def input_schema(format_: Mapping[str, Any] | None) -> JsonObject:
    """Return the parameters of a custom tool, with its grammar as a description."""
    text = {"type": "string"}
    if format_ and format_.get("type") == "grammar":
        syntax, definition = format_.get("syntax"), format_.get("definition")
        text["description"] = f"Text of this {syntax} grammar:\n{definition}"
    return _schema(["input"], input=text)


PATCH_OPERATIONS = ("create_file", "update_file", "delete_file")

FUNCTION = CallKind(
    *("function", "function_call", "function_call_output", "fc"),
    _read_arguments,
    lambda text: {"arguments": text},
    "arguments",
    "function_call_arguments",
)
CUSTOM = CallKind(
    *("custom", "custom_tool_call", "custom_tool_call_output", "ctc"),
    lambda item: _dump({"input": item.get("input") or ""}),
    _write_input,
    "input",
    "custom_tool_call_input",
)
LOCAL_SHELL = CallKind(
    *("local_shell", "local_shell_call", "local_shell_call_output", "lsh"),
    lambda item: _dump(_known(item.get("action"))),
    _write_exec,
    description="Runs a command on the local machine.",
    parameters=_schema(
        ["command"],
        command={"type": "array", "items": {"type": "string"}, "description": "The command."},
        working_directory={"type": "string", "description": "Directory in which it runs."},
        env={"type": "object", "additionalProperties": {"type": "string"}},
        user={"type": "string", "description": "User that runs it."},
        **SHELL_FIELDS,
    ),
)
SHELL = CallKind(
    *("shell", "shell_call", "shell_call_output", "sh"),
    lambda item: _dump(_known(item.get("action"))),
    _write_commands,
    description="Runs shell commands.",
    parameters=_schema(
        ["commands"],
        commands={"type": "array", "items": {"type": "string"}, "description": "The commands."},
        max_output_length={"type": "integer", "description": "Maximum characters of the output."},
        **SHELL_FIELDS,
    ),
)
APPLY_PATCH = CallKind(
    *("apply_patch", "apply_patch_call", "apply_patch_call_output", "apc"),
    lambda item: _dump(_known(item.get("operation"))),
    _write_operation,
    description="Creates, updates or deletes a file by a unified diff.",
    parameters=_schema(
        ["type", "path"],
        type={"type": "string", "enum": [*PATCH_OPERATIONS]},
        path={"type": "string", "description": "Path of the file in the workspace."},
        diff={"type": "string", "description": "The diff of a created or updated file."},
    ),
)
TOOL_SEARCH = CallKind(
    *("tool_search", "tool_search_call", "tool_search_output", "tsc"),
    _read_arguments,
    _write_search,
    description="Finds further tools.",
)
KINDS = (FUNCTION, CUSTOM, LOCAL_SHELL, SHELL, APPLY_PATCH, TOOL_SEARCH)
BY_TOOL = {kind.tool: kind for kind in KINDS}
BY_ITEM = {kind.item: kind for kind in KINDS}
BY_OUTPUT = {kind.output: kind for kind in KINDS}


def find_kind(by_type: Mapping[str, CallKind], part: Item) -> CallKind | None:
    """Return the kind of a tool or an item; None if the client does not run it."""
    kind = by_type.get(part.get("type") or "")
    searched_by_server = kind is TOOL_SEARCH and part.get("execution") != "client"
    return None if searched_by_server else kind
