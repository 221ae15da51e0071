"""The tools of a responses request as functions of a chat completion, and their names.

* A function keeps its name. A function of a namespace is called `NAMESPACE__NAME`, a custom tool
  and a built-in tool of the client as in the request or by their type. Characters that a name of a
  function may not have become `_`.
* A name of more than 64 characters, or of several tools, is replaced by its beginning and a hash of
  the tool. A name therefore does not depend on the order of the tools.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ltrain_train.gateway.apis.body import JsonObject, bad_request
from ltrain_train.gateway.apis.omissions import Omissions, ServerTools
from ltrain_train.gateway.apis.responses_calls import (
    BY_TOOL,
    CUSTOM,
    FUNCTION,
    CallKind,
    find_kind,
    input_schema,
)

SERVER_TOOLS = ServerTools(
    "OpenAI",
    (
        *("web_search", "file_search", "image_generation", "computer", "code_interpreter", "mcp"),
        *("tool_search", "programmatic_tool_calling"),
    ),
)
NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
MAX_NAME = 64
"""Maximum characters of a function's name in OpenAI's API."""
HASH = 8
"""Characters of the hash of a tool in a name."""

Tool = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client runs."""

    kind: CallKind
    name: str
    namespace: str | None = None
    fields: JsonObject = field(default_factory=dict, compare=False)
    """The fields of the function, without its name."""

    @property
    def is_plain(self) -> bool:
        """Whether it is a function of no namespace."""
        return self.kind is FUNCTION and not self.namespace

    @property
    def label(self) -> str:
        """The name before it is made unique."""
        if self.is_plain:
            return self.name
        return NOT_IN_NAMES.sub("_", "__".join(filter(None, (self.namespace, self.name))))

    @property
    def hashed_label(self) -> str:
        """The name if another tool has the same one, or if it is too long."""
        identity = "\0".join((self.kind.tool, self.namespace or "", self.name))
        digest = sha256(identity.encode(errors="replace")).hexdigest()
        return f"{self.label[: MAX_NAME - HASH - 1]}_{digest[:HASH]}"


class ResponsesTools:
    """The tools of one request."""

    def __init__(self, tools: Iterable[Tool], omitted: Omissions) -> None:
        """Read the tools.

        A tool that is declared again, as in the output of a tool search, is the same tool.

        Raises:
            Refused: 400, when a tool is of an unknown type, or two tools get the same name.
        """
        self._omitted = omitted
        known = list(dict.fromkeys(each for tool in tools for each in _read(tool, omitted)))
        labels = Counter(tool.label for tool in known)
        self._tools: dict[str, ClientTool] = {}
        for tool in known:
            unique = labels[tool.label] == 1 and len(tool.label) <= MAX_NAME
            name = tool.label if unique or tool.is_plain else tool.hashed_label
            if name in self._tools:
                raise bad_request(f"Two tools of the request get the name '{name}'. Rename one.")
            self._tools[name] = tool
        self._names = {tool: name for name, tool in self._tools.items()}

    def find(self, name: str) -> ClientTool:
        """Return the tool that the model calls; a function, if the request has no such tool."""
        return self._tools.get(name) or ClientTool(FUNCTION, name)

    def name(self, kind: CallKind, name: str | None, namespace: str | None = None) -> str:
        """Return the name of the function for a tool, which the request may have no longer."""
        tool = ClientTool(kind, name or kind.tool, namespace)
        if tool in self._names:
            return self._names[tool]
        fits = tool.is_plain or (tool.label not in self._tools and len(tool.label) <= MAX_NAME)
        return tool.label if fits else tool.hashed_label

    def found(self, tools: Iterable[Tool]) -> list[str]:
        """Return the names of the functions for the tools that a search found."""
        found = (each for tool in tools for each in _read(tool, self._omitted))
        return [self.name(each.kind, each.name, each.namespace) for each in found]

    def functions(self, choice: Any = None) -> list[JsonObject] | None:
        """Return the tools of the chat completion; None if there are none.

        Args:
            choice: the request's `tool_choice`, which may allow some of them.
        """
        names = set(self._tools)
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            names &= {self._chosen(tool) for tool in choice.get("tools") or ()}
        return [
            {"type": "function", "function": {"name": name, **tool.fields}}
            for name, tool in self._tools.items()
            if name in names
        ] or None

    def choice(self, choice: str | Mapping[str, Any] | None) -> str | JsonObject | None:
        """Return the `tool_choice` of the chat completion."""
        if choice is None or isinstance(choice, str):
            return choice if self._tools or not self._omitted.tools else None
        if choice.get("type") == "allowed_tools":
            return str(choice.get("mode") or "auto") if self.functions(choice) else None
        if name := self._chosen(choice):
            return {"type": "function", "function": {"name": name}}
        self._omitted.items["tool_choice"] += 1
        return None

    def _chosen(self, choice: Any) -> str | None:
        """Return the function that a choice names; None for a tool that was left out."""
        fields = choice if isinstance(choice, dict) else {}
        type_, name, namespace = (fields.get(key) for key in ("type", "name", "namespace"))
        if isinstance(type_, str) and type_ in BY_TOOL:
            texts = [each if isinstance(each, str) else None for each in (name, namespace)]
            return self.name(BY_TOOL[type_], *texts)
        if SERVER_TOOLS.find(type_ if isinstance(type_, str) else None):
            return None
        raise bad_request(
            f"'tool_choice' of the request has the type '{type_}'. Send 'auto', 'none', "
            "'required', or a tool of the request."
        )


def _read(tool: Tool, omitted: Omissions) -> Iterator[ClientTool]:
    """Yield the tools of the client in a tool of the request, which may be a namespace."""
    if tool.get("type") != "namespace":
        yield from _read_tool(tool, None, omitted)
        return
    namespace, description = tool.get("name") or "", tool.get("description")
    for each in tool.get("tools") or ():
        for read in _read_tool(each, namespace, omitted):
            if description:  # the first function has it for all
                texts = filter(None, (description, read.fields.get("description")))
                read.fields["description"] = "\n\n".join(texts)
            description = None
            yield read


def _read_tool(tool: Tool, namespace: str | None, omitted: Omissions) -> Iterator[ClientTool]:
    if (kind := find_kind(BY_TOOL, tool)) is not None:
        yield ClientTool(
            kind, tool.get("name") or kind.tool, namespace, _fields(kind, tool, omitted)
        )
    elif server_tool := SERVER_TOOLS.find(tool.get("type")):
        omitted.tools[server_tool] += 1
    else:
        raise bad_request(
            f"A tool of the request has the type '{tool.get('type')}', which the gateway does not "
            "know. Send functions, custom tools, namespaces of them, shell or apply_patch."
        )


def _fields(kind: CallKind, tool: Tool, omitted: Omissions) -> JsonObject:
    """Return the fields of the function for a tool."""
    if kind is FUNCTION:
        names = ("description", "parameters", "strict")
        return {name: tool[name] for name in names if tool.get(name) is not None}
    fields: JsonObject = {"description": tool.get("description") or kind.description}
    if kind is not CUSTOM:
        return {**fields, "parameters": kind.parameters or tool.get("parameters")}
    format_ = tool.get("format")
    if format_ and format_.get("type") == "grammar":
        omitted.grammars[tool.get("name") or kind.tool] += 1
    return {**fields, "parameters": input_schema(format_)}
