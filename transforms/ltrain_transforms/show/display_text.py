"""Texts for the reader from the content of traces, which is not trusted.

Control characters and marks that change the direction of text become visible, so no trace can
control a terminal. The templates escape HTML.
"""

import json
from typing import Any

from ltrain_instrument.terminal import visible
from ltrain_transforms.dialects import message_parts, messages_text, tool_requests
from ltrain_transforms.show.tree import Row
from ltrain_transforms.traces import parse_json


def shorten(text: str | None, width: int) -> str:
    """Return the beginning of a text as one line of at most `width` characters."""
    flat = " ".join(visible((text or "")[: 4 * width]).split())
    return flat if len(flat) <= width and len(text or "") <= 4 * width else flat[: width - 1] + "…"


def output_text(call: Row) -> str:
    """Return the output of a call: the text and tool calls of a response, the result of a tool."""
    if call["kind"] in ("agent", "node"):
        return ""
    if call["kind"] != "llm":
        return str(call["result"] or call["output"] or "")
    messages = parse_messages(call["output"])
    if messages is None:
        return str(call["output"] or "")
    requests = [
        f"{part.get('name')}({to_text(part.get('arguments'))})" for part in tool_requests(messages)
    ]
    return " ".join([messages_text(messages), *requests]).strip()


def parse_messages(text: str | None) -> list[dict[str, Any]] | None:
    """Parse a JSON list of messages; return None if the text is something else."""
    messages = parse_json(text)
    if (
        isinstance(messages, list)
        and messages
        and all(isinstance(message, dict) for message in messages)
    ):
        return messages
    return None


def message_text(message: dict[str, Any]) -> str:
    """Return the content of a message: text parts as they are, other parts as JSON."""
    if not isinstance(message.get("parts"), list):
        others = {key: value for key, value in message.items() if key != "role"}
        return to_text(others.get("content", others))
    return "\n".join(map(_part_text, message_parts(message)))


def _part_text(part: dict[str, Any]) -> str:
    if part.get("type") == "text":
        return to_text(part.get("content"))
    if part.get("type") == "tool_call":
        return f"→ {part.get('name')}({to_text(part.get('arguments'))})"
    if part.get("type") == "tool_call_response":
        return f"← {to_text(part.get('result', part.get('response')))}"
    return to_text(part)


def to_text(value: Any) -> str:
    """Return a string as it is, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def variable_value(text: str | None) -> str:
    """Return the value of a state variable: a JSON string without quotes, else the text itself."""
    decoded = parse_json(text)
    return decoded if isinstance(decoded, str) else text or ""


def agent_and_node(call: Row) -> str:
    """Return the agent of a call, and its node if that has another name."""
    return "/".join(dict.fromkeys(name for name in (call["agent"], call["node"]) if name))


def call_status(call: Row) -> str:
    return f"error: {call['error_type']}" if call["error_type"] else str(call["status"])


def token_counts(call: Row) -> str:
    """Return the lengths of prompt and response: of the token ids, else the reported usage."""
    prompt, responses = call["prompt_token_ids"], call["response_token_ids"]
    if prompt is not None and responses is not None:
        return f"{len(prompt)}+{sum(map(len, responses))} ids"
    if call["output_tokens"] is None:
        return ""
    return f"{call['input_tokens'] or 0}+{call['output_tokens']} tokens"


def version_label(call: Row) -> str:
    return "" if call["policy_version"] is None else f"{call['policy']}@{call['policy_version']}"


def format_signed(value: float | None) -> str:
    return "none" if value is None else f"{value:+.3f}"
