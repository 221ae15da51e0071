"""Texts for the reader from the content of traces, which is not trusted.

Control characters and marks that change the direction of text become visible, so no trace can
control a terminal. The templates escape HTML.
"""

from ltrain_instrument.machine import visible
from ltrain_transforms.show.rollout import Extent
from ltrain_transforms.show.tree import RolloutTree, Row
from ltrain_transforms.traces import (
    REQUEST,
    RESULT,
    TEXT,
    Message,
    MessagePart,
    ToolRequest,
    messages_text,
    parse_json,
    read_messages,
    to_text,
    tool_requests,
)


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
    messages = read_messages(call["output"])
    if not messages:
        return str(call["output"] or "")
    return " ".join([messages_text(messages), *map(_request_text, tool_requests(messages))]).strip()


def _request_text(request: ToolRequest) -> str:
    return f"{request.name}({to_text(request.arguments)})"


def message_text(message: Message) -> str:
    """Return the content of a message: text parts as they are, other parts as JSON."""
    parts = message.parts
    if not parts and "parts" not in message.fields:
        return to_text({key: value for key, value in message.fields.items() if key != "role"})
    return "\n".join(map(part_text, parts))


def part_text(part: MessagePart) -> str:
    """Return a text part as it is, and another part as JSON."""
    if part.type == TEXT:
        return part.text
    if part.type == REQUEST:
        return f"→ {_request_text(part.request)}"
    if part.type == RESULT:
        return f"← {part.result.text}"
    return to_text(part.fields)


def variable_value(text: str | None) -> str:
    """Return the value of a state variable: a JSON string without quotes, else the text itself."""
    decoded = parse_json(text)
    return decoded if isinstance(decoded, str) else text or ""


def extent_sentence(shown: RolloutTree) -> str:
    """Return what was read for a tree, and who decided on rewards and credit."""
    match shown.extent:
        case Extent.FIRST:
            return f"The first {shown.size:,} calls. All calls are read now."
        case Extent.CALLS:
            return "All calls. Rewards, credit and drops are derived now, from the whole group."
        case Extent.TRAINED:
            return f"Rewards, credit and drops as they were trained: {shown.judged_by}."
        case Extent.CREDIT:
            return f"Rewards, credit and drops by the recipe as it is now: {shown.judged_by}."


def agent_label(call: Row) -> str:
    """Return the agent of a call, and its node if that has another name."""
    return "/".join(dict.fromkeys(name for name in (call["agent"], call["node"]) if name))


def call_status(call: Row) -> str:
    return f"error: {call['error_type']}" if call["error_type"] else str(call["status"])


def token_counts(call: Row) -> str:
    """Return the lengths of prompt and response: of the token ids, else the reported usage."""
    prompt, response = call["prompt_ids"], call["response_ids"]
    if prompt is not None and response is not None:
        return f"{prompt}+{response} ids"
    if call["output_tokens"] is None:
        return ""
    return f"{call['input_tokens'] or 0}+{call['output_tokens']} tokens"


def version_label(call: Row) -> str:
    return "" if call["policy_version"] is None else f"{call['policy']}@{call['policy_version']}"


def format_signed(value: float | None) -> str:
    return "none" if value is None else f"{value:+.3f}"
