"""Prompts and answers as token ids: a chat template renders, and a parser reads.

The library `renderers` has both for the models that it knows by name. Other models are rendered by
their Jinja template, and a parser that an option names reads their tool calls.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from ltrain_instrument.errors import LtrainError
from ltrain_train.gateway.tinker_server.request import SampledRequest, bad_request
from ltrain_train.overlays import TINKER

MAX_RENDERERS = 16
"""Renderers that are kept, one for each set of options of the template."""
HERMES = "hermes"
"""vLLM's name of the parser of `<tool_call>{"name": …, "arguments": …}</tool_call>`."""
CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.S)


class BadTemplate(LtrainError, ValueError):
    """The model has no chat template, or the tool parser is unknown."""


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """The message in the ids of an answer."""

    content: str
    reasoning: str | None
    calls: list[dict[str, Any]]
    """Tool calls in OpenAI's form."""


class Rendering:
    """The template and the parser of one model."""

    def __init__(
        self,
        folder: Path,
        base_model: str,
        *,
        template: str | None = None,
        tool_parser: str | None = None,
    ) -> None:
        """Read the tokenizer in the folder of a model.

        Args:
            base_model: the model's name, by which `renderers` knows its template.
            template: file or text of a template in place of the model's own.
            tool_parser: the parser of tool calls, for a model that `renderers` does not know.

        Raises:
            BadTemplate: when there is no such parser.
        """
        TINKER.add()
        from renderers.base import MODEL_RENDERER_MAP
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.tokenizer.name_or_path = name = base_model.partition(":")[0]
        self.is_known = template is None and name in MODEL_RENDERER_MAP
        if template is not None:
            self.tokenizer.chat_template = _read(template)
        self._parser = None if self.is_known else _find_parser(tool_parser)
        self._renderers: OrderedDict[bytes, Any] = OrderedDict()
        self.stop_ids: list[int] = self._renderer({}).get_stop_token_ids()
        """The ids that end an answer."""

    def render(self, request: SampledRequest) -> list[int]:
        """Return the ids of the prompt of a chat.

        Raises:
            Refused: 400, when the template refuses the messages.
        """
        renderer = self._renderer(request.template_options)
        messages = [_flatten(message) for message in request.messages]
        tools = request.tools or None
        try:
            return list(renderer.render_ids(messages, tools=tools, add_generation_prompt=True))
        except Exception as error:  # a template is a program of the model's author
            raise bad_request(f"The chat template refuses the messages: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return list(self.tokenizer.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def token(self, number: int) -> str:
        """Return the text of one id."""
        return str(self.tokenizer.decode([number]))

    def parse(self, request: SampledRequest, prompt: list[int], ids: list[int]) -> ParsedAnswer:
        """Return the message of an answer. What cannot be parsed as a tool call stays text."""
        renderer = self._renderer(request.template_options)
        tools = request.tools or None
        found = renderer.parse_response(ids, tools=tools, prompt_ids=prompt)
        content, calls = found.content, []
        for call in found.tool_calls:
            if request.parses_tools and call.status == "ok":
                calls.append(_openai_call(call))
            else:
                content += call.raw
        kept = calls if request.parallel_tool_calls else calls[:1]
        return ParsedAnswer(content, found.reasoning_content, kept)

    def _renderer(self, options: Mapping[str, Any]) -> Any:
        """Return the renderer with options of the template."""
        key = orjson.dumps(options, option=orjson.OPT_SORT_KEYS)
        if key not in self._renderers:
            self._renderers[key] = self._create(dict(options))
        self._renderers.move_to_end(key)
        if len(self._renderers) > MAX_RENDERERS:
            self._renderers.popitem(last=False)
        return self._renderers[key]

    def _create(self, options: dict[str, Any]) -> Any:
        from renderers import create_renderer
        from renderers.configs import DefaultRendererConfig

        config = None if self.is_known else DefaultRendererConfig(tool_parser=self._parser)
        try:
            return create_renderer(self.tokenizer, config, chat_template_kwargs=options)
        except ValueError as error:
            if options.pop("reasoning_effort", None):  # a model that has no such option
                return self._create(options)
            raise bad_request(f"The chat template has no such options: {error}") from error


class _HermesText:
    """Reads tool calls where their delimiters are text, not tokens of the vocabulary."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def extract(self, ids: list[int]) -> tuple[list[int], list[Any]]:
        """Return the ids of the other text, and each call, whether it can be read or not."""
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        calls = [self._read(match) for match in CALL.finditer(text)]
        if not calls:
            return ids, []
        rest = CALL.sub("", text).strip()
        return list(self._tokenizer.encode(rest, add_special_tokens=False)), calls

    def _read(self, match: re.Match[str]) -> Any:
        from renderers.base import ParsedToolCall, ToolCallParseStatus

        try:
            call = orjson.loads(match[1])
            name, arguments = str(call["name"]), dict(call.get("arguments") or {})
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            return ParsedToolCall(raw=match[0], status=ToolCallParseStatus.INVALID_JSON)
        return ParsedToolCall(raw=match[0], name=name, arguments=arguments)


def _find_parser(name: str | None) -> str | None:
    """Return the name of a parser that `renderers` has then."""
    from renderers.parsers import TOOL_PARSERS

    TOOL_PARSERS.setdefault(HERMES, _HermesText)
    if name is not None and name not in TOOL_PARSERS:
        choices = ", ".join(sorted(TOOL_PARSERS))
        raise BadTemplate(f"Unknown tool parser '{name}'. Choose from: {choices}.")
    return name


def _read(template: str) -> str:
    """Return the text of a template."""
    try:
        return Path(template).read_text()
    except OSError:
        return template


def _flatten(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its content as one text, and its thinking as `renderers` reads it.

    Raises:
        Refused: 400, when it has more than text.
    """
    content = message.get("content") or ""
    if isinstance(content, list):
        if any(not isinstance(part.get("text"), str) for part in content):
            raise bad_request("A Tinker server gets texts only: remove images, audio and files.")
        content = "\n".join(part["text"] for part in content)  # as vLLM joins them
    flat = {**message, "content": content}
    if "reasoning" in message:
        flat.setdefault("reasoning_content", message["reasoning"])
    return {name: value for name, value in flat.items() if value is not None}


def _openai_call(call: Any) -> dict[str, Any]:
    arguments = call.arguments
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    function = {"name": call.name, "arguments": text}
    return {"id": call.id or f"call_{uuid4().hex}", "type": "function", "function": function}
