"""The contents and tools of a Gemini request as messages and functions of a chat completion."""

import json
from base64 import b64decode, b64encode, urlsafe_b64decode
from collections.abc import Iterator, Mapping
from typing import Any

from ltrain_train.gateway.apis.body import JsonObject, bad_request
from ltrain_train.gateway.apis.gemini.schema import plain_schema
from ltrain_train.gateway.apis.omissions import Omissions, ServerTools

SERVER_TOOLS = ServerTools(
    "Google",
    (
        *("googleSearch", "googleSearchRetrieval", "enterpriseWebSearch", "codeExecution"),
        *("urlContext", "fileSearch", "googleMaps", "retrieval", "computerUse", "mcpServers"),
        "parallelAiSearch",
    ),
)
SERVER_PARTS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Parts of tools that only Google's servers run; they are left out."""
KEPT_REASONING = b"ltrain.reasoning."
"""The beginning of a `thoughtSignature` with reasoning of this gateway, before its base64. Clients
return a signature also if they do not return the thoughts."""
MODES = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "required"}
RESULTS = ("output", "result")
"""Fields of a function's response that have its text, if it has no other field."""

Part = Mapping[str, Any]


def keep_reasoning(text: str) -> str:
    """Return the `thoughtSignature` of the part after some thoughts."""
    return b64encode(KEPT_REASONING + text.encode(errors="replace")).decode()


def read_messages(requested: Mapping[str, Any], omitted: Omissions) -> Iterator[JsonObject]:
    """Yield the messages of a request, that of the system first."""
    system = (requested.get("systemInstruction") or {}).get("parts") or ()
    texts = [part.get("text") or "" for part in system]
    if any(texts):
        yield {"role": "system", "content": "\n\n".join(texts)}
    yield from _Contents(omitted).read(requested["contents"])


class _Contents:
    """The contents of one request; adjacent contents of the model are one turn."""

    def __init__(self, omitted: Omissions) -> None:
        self._omitted = omitted
        self._open: dict[str, list[str]] = {}
        """The ids of the calls without a response, by the name of the function."""
        self._calls = 0

    def read(self, contents: list[Mapping[str, Any]]) -> Iterator[JsonObject]:
        turn: list[Part] = []
        for number, content in enumerate(contents):
            parts = [part for part in content.get("parts") or () if not self._omits(part)]
            if content.get("role") == "model":
                turn += parts
                continue
            if turn:
                yield self._model_message(turn)
                turn = []
            yield from self._user_messages(parts, f"contents.{number}")
        if turn:
            yield self._model_message(turn)

    def _omits(self, part: Part) -> bool:
        """Return whether a part is left out, and count it then."""
        name = next((each for each in SERVER_PARTS if part.get(each) is not None), None)
        if name is not None:
            self._omitted.items[name] += 1
        return name is not None

    def _model_message(self, parts: list[Part]) -> JsonObject:
        """Return the parts of a turn as one message, as the model wrote it."""
        thoughts = "".join(part.get("text") or "" for part in parts if part.get("thought"))
        signatures = [text for part in parts if (text := part.get("thoughtSignature"))]
        kept = "".join(self._kept_reasoning(text) for text in signatures)
        texts = [part["text"] for part in parts if part.get("text") and not part.get("thought")]
        calls = [self._call(part["functionCall"]) for part in parts if part.get("functionCall")]
        message: JsonObject = {"role": "assistant"}
        fields = {"reasoning": thoughts or kept, "content": "".join(texts), "tool_calls": calls}
        return message | {name: value for name, value in fields.items() if value}

    def _kept_reasoning(self, signature: str) -> str:
        padded = signature + "=" * (-len(signature) % 4)
        try:
            decode = urlsafe_b64decode if {"-", "_"} & {*padded} else b64decode
            raw = decode(padded)
            if raw.startswith(KEPT_REASONING):
                return raw.removeprefix(KEPT_REASONING).decode()
        except ValueError:
            pass  # of another server, or a mark of the client
        self._omitted.items["thoughtSignature"] += 1
        return ""

    def _call(self, call: Mapping[str, Any]) -> JsonObject:
        name, id_ = call.get("name") or "", call.get("id")
        self._calls += 1
        id_ = id_ or f"call_{self._calls}"
        self._open.setdefault(name, []).append(id_)
        arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
        function = {"name": name, "arguments": arguments}
        return {"id": id_, "type": "function", "function": function}

    def _user_messages(self, parts: list[Part], place: str) -> Iterator[JsonObject]:
        """Yield a message for each response of a function, and one for the parts between them."""
        others: list[JsonObject] = []
        for part in parts:
            response = part.get("functionResponse")
            if response is None:
                others.append(_part(part, place))
                continue
            if others:
                yield {"role": "user", "content": _joined(others)}
                others = []
            yield self._tool_message(response, place)
        if others:
            yield {"role": "user", "content": _joined(others)}

    def _tool_message(self, response: Mapping[str, Any], place: str) -> JsonObject:
        """Return the response of a function; without an id it is that of its first open call."""
        open_ids = self._open.get(response.get("name") or "", [])
        id_ = response.get("id") or (open_ids[0] if open_ids else None)
        if id_ in open_ids:
            open_ids.remove(id_)
        text: JsonObject = {"type": "text", "text": _response_text(response.get("response") or {})}
        media = [_part(each, place) for each in response.get("parts") or ()]
        return {"role": "tool", "tool_call_id": id_, "content": _joined([text, *media])}


def _response_text(response: JsonObject) -> str:
    for name in RESULTS:
        if response.keys() == {name} and isinstance(response[name], str):
            return str(response[name])
    return json.dumps(response, ensure_ascii=False)


def _joined(parts: list[JsonObject]) -> str | list[JsonObject]:
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(part: Part, place: str) -> JsonObject:
    if part.get("text") is not None:
        return {"type": "text", "text": part["text"]}
    blob = part.get("inlineData") or {}
    kind = str(blob.get("mimeType") or "")
    if kind.startswith("image/"):
        url = f"data:{kind};base64,{blob.get('data') or ''}"
        return {"type": "image_url", "image_url": {"url": url}}
    names = ", ".join(sorted(part))[:100]
    raise bad_request(
        f"'{place}' of the request has a part with {names or 'nothing'}, which a chat completion "
        "has not. Send text, images as inlineData, and calls and responses of functions."
    )


class GeminiTools:
    """The functions of one request, and the choice among them."""

    def __init__(self, requested: Mapping[str, Any], omitted: Omissions) -> None:
        """Read the tools.

        Raises:
            Refused: 400, when a tool or the mode is unknown.
        """
        config = (requested.get("toolConfig") or {}).get("functionCallingConfig") or {}
        declared = [each for tool in requested.get("tools") or () for each in _read(tool, omitted)]
        allowed = config.get("allowedFunctionNames") or [each["name"] for each in declared]
        self.functions: list[JsonObject] = [
            {"type": "function", "function": each} for each in declared if each["name"] in allowed
        ]
        self.choice = self._choice(config.get("mode"), config.get("allowedFunctionNames"))

    def _choice(self, mode: str | None, allowed: list[str] | None) -> str | JsonObject | None:
        if mode in (None, "MODE_UNSPECIFIED") or not self.functions:
            return None
        if mode not in MODES:
            raise bad_request(
                f"The mode of 'toolConfig' of the request cannot be '{mode}'. Choose from: "
                f"{', '.join(MODES)}."
            )
        if mode == "ANY" and allowed and len(allowed) == 1:
            return {"type": "function", "function": {"name": allowed[0]}}
        return MODES[mode]


def _read(tool: Mapping[str, Any], omitted: Omissions) -> Iterator[JsonObject]:
    """Yield the functions of a tool, whose fields are kinds of tools."""
    for kind, value in tool.items():
        if kind == "functionDeclarations":
            yield from map(_function, value or ())
        elif server_tool := SERVER_TOOLS.find(kind):
            if value is not None:
                omitted.tools[server_tool] += 1
        else:
            raise bad_request(
                f"A tool of the request has '{kind}', which the gateway does not know. Send "
                "functionDeclarations."
            )


def _function(declaration: Mapping[str, Any]) -> JsonObject:
    schema = declaration.get("parametersJsonSchema")
    if schema is None and declaration.get("parameters") is not None:
        schema = plain_schema(declaration["parameters"])
    fields = {"description": declaration.get("description"), "parameters": schema}
    known = {name: value for name, value in fields.items() if value is not None}
    return {"name": declaration["name"], **known}
