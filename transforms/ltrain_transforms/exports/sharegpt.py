"""ShareGPT's format as LLaMA-Factory reads it: turns of `human`, `gpt` and tools that alternate.

A line is `{"conversations": [{"from": ..., "value": ...}]}`, with `tools` as JSON text if any were
offered. The calls of an answer are one `function_call`, a JSON list if they are several, and their
results one `observation`. Thinking is in `<think>` before the text. Its readers train on every
answer of a conversation.
"""

import json
from itertools import groupby
from operator import itemgetter

from ltrain_transforms.exports.conversation_rows import (
    Facts,
    NotHeld,
    Rows,
    export_conversations,
)
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ExportResult, Line
from ltrain_transforms.exports.conversion_files import ExportJob
from ltrain_transforms.rendering import ChatMessage
from ltrain_transforms.traces import parse_json

NOT_ALTERNATING, TEXT_AND_CALLS = "not_alternating", "text_and_calls"
REASONS = {
    NOT_ALTERNATING: "the turns of its conversation do not alternate, or do not begin with a user",
    TEXT_AND_CALLS: "an answer of its conversation holds text and tool calls, of which ShareGPT "
    "holds one",
}

SYSTEM, HUMAN, GPT, CALL, RESULT = "system", "human", "gpt", "function_call", "observation"

NAMES = {"system": SYSTEM, "developer": SYSTEM, "user": HUMAN, "assistant": GPT, "tool": RESULT}

Turn = dict[str, str]


def export_sharegpt(job: ExportJob) -> ExportResult:
    """Export the conversations of the best rollouts."""
    return export_conversations(job, _rows, reasons=REASONS).result()


def _rows(conversation: Conversation, _: Facts) -> Rows:
    turns = list(map(_turn, conversation.prompt(len(conversation.messages))))
    joined = [_join(name, list(own)) for name, own in groupby(turns, itemgetter("from"))]
    _require_alternation(joined)
    line: Line = {"conversations": joined}
    if conversation.tools:
        functions = [tool.get("function", tool) for tool in conversation.tools]
        line["tools"] = json.dumps(functions, ensure_ascii=False)
    yield line, list(conversation.answers.values())


def _turn(message: ChatMessage) -> Turn:
    name, text = NAMES.get(message["role"], HUMAN), str(message["content"])
    if thinking := message.get("reasoning_content"):
        text = f"<think>\n{thinking}\n</think>\n\n{text}"
    if "tool_calls" not in message:
        return {"from": name, "value": text}
    if message["content"]:
        raise NotHeld(TEXT_AND_CALLS)
    calls = [_call(call) for call in message["tool_calls"]]
    value = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
    return {"from": CALL, "value": text + value}


def _call(call: ChatMessage) -> dict[str, object]:
    function = call["function"]
    return {"name": function["name"], "arguments": parse_json(function["arguments"])}


def _join(name: str, turns: list[Turn]) -> Turn:
    """Return neighbouring turns of one name as one turn; answers are not joined."""
    if len(turns) == 1:
        return turns[0]
    if name in (GPT, CALL):
        raise NotHeld(NOT_ALTERNATING)
    texts = [turn["value"] for turn in turns]
    value = json.dumps(texts, ensure_ascii=False) if name == RESULT else "\n\n".join(texts)
    return {"from": name, "value": value}


def _require_alternation(turns: list[Turn]) -> None:
    names = [turn["from"] for turn in turns]
    names = names[1:] if names[0] == SYSTEM else names
    has_questions = all(name in (HUMAN, RESULT) for name in names[::2])
    has_answers = all(name in (GPT, CALL) for name in names[1::2])
    if not (has_questions and has_answers and names and names[0] == HUMAN):
        raise NotHeld(NOT_ALTERNATING)
