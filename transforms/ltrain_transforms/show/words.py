"""What a trace says, made fit to be read: it is not trusted, so nothing in it can steer a terminal.

Control characters and marks that turn the direction of text become visible; HTML is escaped by the
templates.
"""

import json
from typing import Any

from ltrain_instrument.terminal import visible
from ltrain_transforms.dialects.messages import message_parts, messages_text, tool_requests
from ltrain_transforms.show.tree import Row
from ltrain_transforms.untrusted import parse_json


def short(text: str | None, width: int) -> str:
    """Give the beginning of a text in one line of at most `width` characters."""
    flat = " ".join(visible((text or "")[: 4 * width]).split())
    return flat if len(flat) <= width and len(text or "") <= 4 * width else flat[: width - 1] + "…"


def said(call: Row) -> str:
    """Give what came out: an answer's text and tool requests, a tool's result."""
    if call["kind"] in ("agent", "node"):
        return ""
    if call["kind"] != "llm":
        return str(call["result"] or call["output"] or "")
    messages = listed(call["output"])
    if messages is None:
        return str(call["output"] or "")
    asked = [f"{one.get('name')}({plain(one.get('arguments'))})" for one in tool_requests(messages)]
    return " ".join([messages_text(messages), *asked]).strip()


def listed(text: str | None) -> list[dict[str, Any]] | None:
    """Read messages; None where the text is no list of them."""
    found = parse_json(text)
    if isinstance(found, list) and found and all(isinstance(one, dict) for one in found):
        return found
    return None


def lines(message: dict[str, Any]) -> str:
    """Give what a message says: texts as they are, other parts as JSON with their kind."""
    if not isinstance(message.get("parts"), list):
        rest = {key: value for key, value in message.items() if key != "role"}
        return plain(rest.get("content", rest))
    return "\n".join(map(_part, message_parts(message)))


def _part(part: dict[str, Any]) -> str:
    if part.get("type") == "text":
        return plain(part.get("content"))
    if part.get("type") == "tool_call":
        return f"→ {part.get('name')}({plain(part.get('arguments'))})"
    if part.get("type") == "tool_call_response":
        return f"← {plain(part.get('result', part.get('response')))}"
    return plain(part)


def plain(value: Any) -> str:
    """Give a text as it is and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def value(text: str | None) -> str:
    """Give a state variable's value: a text without the quotes of JSON, anything else as it is."""
    found = parse_json(text)
    return found if isinstance(found, str) else text or ""


def place(call: Row) -> str:
    """Give the agent, and the node where it is another name."""
    return "/".join(dict.fromkeys(name for name in (call["agent"], call["node"]) if name))


def status(call: Row) -> str:
    return f"error: {call['error_type']}" if call["error_type"] else str(call["status"])


def tokens(call: Row) -> str:
    """Give the lengths of prompt and answer: token ids that are there, else usage as reported."""
    prompt, responses = call["prompt_token_ids"], call["response_token_ids"]
    if prompt is not None and responses is not None:
        return f"{len(prompt)}+{sum(map(len, responses))} ids"
    if call["output_tokens"] is None:
        return ""
    return f"{call['input_tokens'] or 0}+{call['output_tokens']} tokens"


def version(call: Row) -> str:
    return "" if call["policy_version"] is None else f"{call['policy']}@{call['policy_version']}"


def signed(value: float | None) -> str:
    return "none" if value is None else f"{value:+.3f}"
