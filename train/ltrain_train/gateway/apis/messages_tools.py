"""The tools of Anthropic's messages as functions of a chat completion.

A tool that Anthropic defines and the client runs gets the parameters that Anthropic documents.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ltrain_train.gateway.apis.body import JsonObject, bad_request
from ltrain_train.gateway.apis.omissions import Omissions, ServerTools

SERVER_TOOLS = ServerTools(
    "Anthropic",
    (
        *("web_search", "web_fetch", "code_execution", "computer", "browser_toolset"),
        *("tool_search_tool", "mcp_toolset", "advisor"),
    ),
)
"""Also the tools of a computer and of a browser, whose schemas are not published."""
TEXT = {"type": "string"}
LINE = {"type": "integer"}
EDITOR = {
    "path": {**TEXT, "description": "Absolute path of a file or a directory."},
    "file_text": {**TEXT, "description": "For create: the content of the file."},
    "old_str": {**TEXT, "description": "For str_replace: the text to replace, which is unique."},
    "new_str": {**TEXT, "description": "For str_replace: the text in its place."},
    "insert_line": {**LINE, "description": "For insert: the line after which the text comes."},
    "view_range": {"type": "array", "items": LINE, "description": "For view: the lines."},
}
INSERTED = {"insert_text": {**TEXT, "description": "For insert: the text."}}
INSERTED_BEFORE = {"new_str": {**TEXT, "description": "For str_replace and insert: the new text."}}
"""The text of an insertion in the editors before July 2025."""
MOVED = {
    "old_path": {**TEXT, "description": "For rename: the path."},
    "new_path": {**TEXT, "description": "For rename: the new path."},
}


def _commands(
    names: tuple[str, ...], further: JsonObject, required: tuple[str, ...] = ("command", "path")
) -> JsonObject:
    command = {**TEXT, "enum": [*names], "description": "The command to run."}
    return {
        "type": "object",
        "properties": {"command": command, **EDITOR, **further},
        "required": [*required],
    }


VIEW, EDIT = "Views, creates and edits files.", ("view", "create", "str_replace", "insert")
BASH = {
    "type": "object",
    "properties": {
        "command": {**TEXT, "description": "The command to run."},
        "restart": {"type": "boolean", "description": "Whether to restart the shell."},
    },
}
OLD_EDITOR = ("str_replace_editor", VIEW, _commands((*EDIT, "undo_edit"), INSERTED_BEFORE))
CLIENT_TOOLS: dict[str, tuple[str, str, JsonObject]] = {
    "bash": ("bash", "Runs a command in a shell that stays open.", BASH),
    "text_editor_20241022": OLD_EDITOR,
    "text_editor_20250124": OLD_EDITOR,
    "text_editor_20250429": ("str_replace_based_edit_tool", VIEW, _commands(EDIT, INSERTED_BEFORE)),
    "text_editor": ("str_replace_based_edit_tool", VIEW, _commands(EDIT, INSERTED)),
    "memory": (
        "memory",
        "Views, creates and edits the files of the memory.",
        _commands((*EDIT, "delete", "rename"), INSERTED | MOVED, required=("command",)),
    ),
}
"""The name, description and parameters of each tool; a name without a date stands also for all its
other versions."""


def functions(tools: Iterable[Mapping[str, Any]], omitted: Omissions) -> list[JsonObject]:
    """Return the tools of a chat completion.

    Raises:
        Refused: 400, when a tool is of an unknown type.
    """
    read = (_function(tool, omitted) for tool in tools)
    return [{"type": "function", "function": function} for function in read if function]


def _function(tool: Mapping[str, Any], omitted: Omissions) -> JsonObject | None:
    type_ = tool.get("type") or "custom"
    if type_ == "custom" and not tool.get("name"):
        raise bad_request("A tool of the request has no name. Name it.")
    if type_ == "custom":
        fields = {"name": "name", "description": "description", "input_schema": "parameters"}
        return {new: tool[old] for old, new in fields.items() if tool.get(old) is not None}
    known = CLIENT_TOOLS.get(type_) or CLIENT_TOOLS.get(type_.rpartition("_")[0])
    if known:
        name, description, parameters = known
        name = tool.get("name") or name
        return {"name": name, "description": description, "parameters": parameters}
    if server_tool := SERVER_TOOLS.find(type_):
        omitted.tools[server_tool] += 1
        return None
    raise bad_request(
        f"A tool of the request has the type '{type_}', which the gateway does not know. Send "
        "tools with an 'input_schema', bash, text editor or memory."
    )
