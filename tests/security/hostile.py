"""Traces of an adversary: spans of every dialect with unexpected values and structures.

Attribute names come from the dialects' own modules and from the captures in `tests/fixtures`, so a
new dialect is attacked without a change here.
"""

import ast
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from random import Random
from typing import Any

import polars as pl
from hypothesis import strategies as st
from tests.transforms.made import MS, NOON, Row, span, spans

from ltrain_instrument import attributes
from ltrain_transforms import dialects
from ltrain_transforms.rewards import evaluations

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODULES = [
    evaluations,
    attributes,
    *(
        import_module(found.name)
        for found in walk_packages(dialects.__path__, f"{dialects.__name__}.")
    ),
]
"""Modules whose string literals may be names of attributes."""

HUGE = "9" * 5_000
"""An integer beyond Python's limit of 4,300 digits for text."""
HALF = "\\ud83d"
"""JSON of half a surrogate pair."""


def deep(levels: int, key: str | None = None) -> str:
    """Return JSON nested to this depth: lists, or objects with one key."""
    opening, closing = ("[", "]") if key is None else (f'{{"{key}": ', "}")
    return opening * levels + "1" + closing * levels


# values

NUMBERS = (
    *("0", "-1", "-5", "1e999", "-1e999", "NaN", "nan", "inf", "-Infinity", "1.5", "0x10", "1_0"),
    *(HUGE, f"-{HUGE}", str(2**31), str(2**63 - 1), str(2**63), str(-(2**63) - 1), str(2**64), "٣"),
)
TEXTS = (
    *(
        "",
        " ",
        "\x00",
        "a\x00b",
        "\u202e",
        "\ufffd",
        "\\",
        "'",
        '"',
        "\\x",
        "true",
        "null",
        "%s {}",
    ),
    *(
        "🙂",
        "\n",
        "</script><script>alert(1)</script>",
        "\x1b]0;title\x07",
        "A" * 10_000,
        "::",
        "...",
    ),
    *("chat", "tool", "stop", "tool_calls", "ok", "error", "rollout", "call", "reward", "agent"),
)
BROKEN = (
    *(
        "{",
        "[",
        "[1",
        '{"a"',
        '[{"role": "user", "pa',
        "[,]",
        "{}",
        "[]",
        "[[]]",
        "[null]",
        "[[3]]",
    ),
    *(f'"{HALF}"', f'["{HALF}"]', f'{{"{HALF}": "{HALF}"}}', '"\\u0000"', f'"\\\\ud83d{HALF}"'),
    *(f"[{HUGE}]", f'{{"a": {HUGE}}}', f'{{"temperature": {2**64}}}', f"[NaN, {2**70}]"),
    *(deep(levels, key) for levels in (90, 200, 300, 900, 5_000) for key in (None, "content")),
    *(deep(120, key) for key in ("messages", "output", "function", "parts", "tool_calls")),
    '{"a": 1, "a": {"b": NaN}}',
    json.dumps({"role": "user", "content": json.dumps(deep(200))}),
)
TOKENS = (
    *("[1,-2]", "[1.5]", "[4294967296]", f"[{2**70}]", f"[{HUGE}]", "[1,2,3]", "[[1,2],[3]]"),
    *(
        "[[1],[]]",
        "[true]",
        '["1"]',
        "[" + "1," * 5_000 + "1]",
        "[1,,2]",
        "[ 1 , 2 ]",
        "1,2",
        "[00001]",
    ),
    *("AAAA", "AAAAvwAAAL8=", "AAAAvw==", "!!!!", "====", '["AAAAvw=="]', "[-0.5,-0.5]", "[NaN]"),
    *("AADAfwAAwH8=", "[null]", "[[-0.5]]", '["AAAAvw==", 5]', "[1e999]", "[-1e300, 2]"),
)
PYTHON = tuple(
    json.dumps({"task": text, "messages": [text, text], "kwargs": {"a": text}, "args": [text]})
    for text in (
        "id='1' source='\\x' models_usage=None content='\\N{none}' type='TextMessage'",
        "id='1' source='user' models_usage=None content='\\ud83d' type='TextMessage'",
        "id='1' source='user' models_usage=None content='a\x00b' type='TextMessage'",
        "id='1' source='user' content='hello' type='TextMessage'",
        "id= source='" * 2_000,
        "AutoGen source='a' content='" + "(" * 500 + "' type='X'",
        "AgentSetup(input=[], current_agent_name='a')",
    )
) + tuple(
    f"StreamDelta(x)\nFinalAnswerStep(output={text})"
    for text in ("'\\x'", "'\\ud83d'", "'a\x00b'", "'\\N{none}'", "'fine'", '"' + "\\" * 999 + '"')
)
WORDS = (
    *("role", "parts", "content", "type", "tool_calls", "tool_call_id", "id", "name", "function"),
    *(
        "arguments",
        "args",
        "kwargs",
        "input",
        "output",
        "messages",
        "generations",
        "choices",
        "data",
    ),
    *("message", "prompts", "finish_reason", "status", "isError", "text", "blocks", "ev", "value"),
    *("response", "result", "usage", "logprob", "langgraph_node", "lc_agent_name", "input_str"),
    *("inputs", "outputs", "metadata", "tags", "documents", "temperature", "parameters", "object"),
    *("task", "description", "raw", "context", "toolCallId", "toolName", "input_schema", "schema"),
    *(
        "user",
        "assistant",
        "system",
        "ai",
        "human",
        "constructor",
        "tool_call",
        "tool_call_response",
    ),
    *(
        "tool_use",
        "tool-call",
        "tool_result",
        "tool-result",
        "reasoning",
        "image",
        "pattern",
        "$ref",
    ),
)
LEAVES = (
    *(None, True, False, 0, -1, 2**31, 2**63, 2**64, -(2**70), 1.5, float("nan"), float("inf")),
    *("", "\x00", "\ud83d", "text", "{", "[1", '{"a": 1}', "1", "tool", "llm", "a" * 300, *WORDS),
)
PARTS = ("text", "text", "tool_call", "tool_call", "tool_call_response", "image", 5, None)
ROLES = ("user", "assistant", "tool", "system", "ai", None, 7)


def structure(rng: Random, levels: int = 3) -> Any:
    """Return any JSON with the keys that readers look for, and halves of surrogate pairs."""
    kind = rng.randrange(4) if levels else 0
    if kind < 2:
        return rng.choice(LEAVES)
    inner = [structure(rng, levels - 1) for _ in range(rng.randrange(4))]
    return inner if kind == 2 else {rng.choice(WORDS): one for one in inner}


def messages(rng: Random) -> Any:
    """Return messages, most of which have the shape of the gen_ai conventions or of OpenAI."""
    return [_message(rng) for _ in range(rng.randrange(5))]


def _message(rng: Random) -> Any:
    fields: dict[str, Any] = {"role": rng.choice(ROLES) if rng.random() < 0.8 else structure(rng)}
    if rng.random() < 0.7:
        fields["parts"] = [_part(rng) for _ in range(rng.randrange(4))]
    for name in ("content", "tool_calls", "finish_reason", "id", "parts"):
        if rng.random() < 0.2:
            fields[name] = structure(rng)
    return fields if rng.random() < 0.9 else structure(rng)


def _part(rng: Random) -> Any:
    fields = {"type": rng.choice(PARTS)}
    for name in ("content", "id", "name", "arguments", "response", "result"):
        if rng.random() < 0.5:
            fields[name] = structure(rng) if rng.random() < 0.5 else rng.choice(TEXTS)
    return fields if rng.random() < 0.9 else structure(rng)


def value(rng: Random) -> str:
    """Return an unexpected value of an attribute."""
    kind = rng.randrange(9)
    if kind < 5:
        return rng.choice((NUMBERS, TEXTS, BROKEN, TOKENS, PYTHON)[kind])
    if kind < 7:
        return json.dumps(messages(rng))
    text = json.dumps(structure(rng))
    return text if kind == 7 else json.dumps(text)


def spoiled(rng: Random, text: str) -> str:
    """Return JSON with one value replaced anywhere in it."""
    try:
        root = [json.loads(text)]
    except (ValueError, RecursionError):
        return value(rng)
    at: Any = root
    while True:
        key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.2:
            at[key] = structure(rng) if rng.random() < 0.7 else rng.choice(LEAVES)
            return json.dumps(root[0])
        at = inner


# names


def _literals() -> Iterator[str]:
    """Yield every string in the modules that read attributes."""
    for module in MODULES:
        source = Path(str(module.__file__)).read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value.strip("\n")


@cache
def captured() -> tuple[Row, ...]:
    """Return the spans of every capture, as rows of `SPANS`."""
    return tuple(
        _row(one, scope.get("scope", {}).get("name", ""))
        for path in sorted(FIXTURES.glob("*.otlp.json"))
        for document in _documents(path)
        for resource in document.get("resourceSpans", ())
        for scope in resource["scopeSpans"]
        for one in scope["spans"]
    )


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    text, position = path.read_text().strip(), 0
    while position < len(text):
        document, position = json.JSONDecoder().raw_decode(text, position)
        position += len(text[position:]) - len(text[position:].lstrip())
        yield document


def _row(one: dict[str, Any], scope: str) -> Row:
    fields = {each["key"]: _text(each["value"]) for each in one.get("attributes", ())}
    return {**span(one["spanId"], fields, scope=scope), "name": one["name"]}


def _text(value: dict[str, Any]) -> str:
    [(kind, inner)] = value.items()
    if kind == "arrayValue":
        return json.dumps([_text(each) for each in inner.get("values", ())])
    return str(inner).lower() if kind == "boolValue" else str(inner)


@cache
def names() -> tuple[str, ...]:
    """Return the names of attributes that some reader may look for."""
    found = {text for text in _literals() if "." in text and " " not in text and "/" not in text}
    found |= {name for row in captured() for name in row["attributes"]}
    return tuple(sorted(found))


INDICES = ("0", "1", "00", "999999999", HUGE, "-1", "٣", "x", "")
PREFIXES = (
    *(
        "llm.input_messages",
        "llm.output_messages",
        "gen_ai.prompt",
        "gen_ai.completion",
        "llm.tools",
    ),
    *("llm.request.functions", "retrieval.documents", "annotations", "trace.evaluations"),
    *("agentlightning.reward", "agentlightning.link", "llm.input_messages.0.message.tool_calls"),
    *("llm.output_messages.0.message.contents",),
)
SUFFIXES = (
    *("message.role", "message.content", "message.tool_calls.0.tool_call.id", "role", "content"),
    *("message.contents.0.message_content.text", "tool.json_schema", "name", "parameters", "value"),
    *("document.content", "annotation.name", "annotation.score", "evaluation.score", "key_match"),
    *(
        "tool_calls.0.arguments",
        "tool_call.function.arguments",
        "message_content.type",
        "value_match",
    ),
)


def name(rng: Random) -> str:
    """Return the name of an attribute, some with an index that no list has."""
    if rng.random() < 0.7:
        return rng.choice(names())
    return ".".join(map(rng.choice, (PREFIXES, INDICES, SUFFIXES)))


KINDS: tuple[dict[str, str], ...] = (
    {"gen_ai.operation.name": "chat"},
    {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t"},
    {"gen_ai.operation.name": "retrieval"},
    {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "a"},
    {"mcp.method.name": "tools/call"},
    *({"gen_ai.operation.name": "chat"},) * 4,
    *({"openinference.span.kind": kind} for kind in ("LLM", "TOOL", "CHAIN", "AGENT", "RETRIEVER")),
    *({"traceloop.span.kind": kind} for kind in ("tool", "workflow", "task")),
    {"llm.request.type": "chat"},
    *({"langfuse.observation.type": kind} for kind in ("generation", "tool", "span")),
    *({"langsmith.span.kind": kind} for kind in ("llm", "tool", "chain")),
    {"ai.operationId": "ai.generateText.doGenerate"},
    {"ai.operationId": "ai.toolCall"},
    *({"agentops.span.kind": kind} for kind in ("llm", "tool", "agent")),
    {},
)
SCOPES = (
    *("ltrain.gateway", "ltrain.capture", "ltrain.runner", "a-library", ""),
    "openinference.instrumentation.autogen_agentchat",
    "openinference.instrumentation.smolagents",
    "openinference.instrumentation.crewai",
    "openinference.instrumentation.llama_index",
    "openinference.instrumentation.litellm",
    "opentelemetry.instrumentation.openai.v1",
)
HOLDERS = (
    *("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.prompt", "gen_ai.completion"),
    *("langfuse.observation.input", "langfuse.observation.output", "input.value", "output.value"),
    *("ai.prompt.messages", "ai.response.text", "ai.response.toolCalls", "metadata"),
    *("traceloop.entity.input", "traceloop.entity.output", "gen_ai.tool.definitions"),
    *("gen_ai.tool.call.arguments", "gen_ai.tool.call.result", "gen_ai.system_instructions"),
    *("agentops.tool.input", "agentops.tool.output", "llm.invocation_parameters"),
)
"""Attributes that hold JSON."""
SPAN_NAMES = (
    *("chat", "", "\x00", "Agent.run", "a.on_messages_stream", "Tool.acall", "X._inner"),
    *(attributes.SPAN_EVALUATION, attributes.SPAN_ROLLOUT, attributes.SPAN_PROCESS),
    *(attributes.SPAN_DISPATCH, attributes.SPAN_STEP, evaluations.AGENT_LIGHTNING),
)
EDGES = (0, 1, -1, 2**63 - 1, -(2**63), NOON, NOON + MS, NOON - MS, 10**18)
OUTCOMES = ("ok", "error", "timeout", "infra", "cancelled", "x", "\x00", None, None)
IDS = "abcdefgh"


# spans and traces


@dataclass(frozen=True, slots=True)
class Trace:
    """A hostile execution together with harmless ones."""

    rows: tuple[Row, ...]

    def named(self, number: int) -> list[Row]:
        """Return the rows with new ids, so that one frame can contain many traces."""

        def own(text: str | None) -> str | None:
            return text if text is None else f"{text}{number}"

        return [
            {
                **row,
                "execution_id": f"e{number}.1",
                "trace_id": f"t{number}",
                "span_id": own(row["span_id"]),
                "parent_id": own(row["parent_id"]),
                "links": [own(link) for link in row["links"]],
                "rollout_id": own(row.get("rollout_id")),
                "run_id": "r",
                "mode": "train",
                "task_id": f"task{number % 3}",
                "wave": row.get("wave"),
            }
            for row in self.rows
        ]


def frame(traces: list[Trace]) -> pl.DataFrame:
    """Put traces into one frame of `SPANS`."""
    return spans(*(row for number, trace in enumerate(traces) for row in trace.named(number)))


def _span(rng: Random, place: int) -> Row:
    """Return a span of a dialect, or a captured one, with some attributes replaced."""
    if rng.random() < 0.6:
        base = rng.choice(captured())
        own = sorted(base["attributes"])
        replaced = rng.sample(own, min(len(own), rng.randrange(6)))
        fields = {
            **base["attributes"],
            **{each: spoiled(rng, base["attributes"][each]) for each in replaced},
        }
        scope, called = base["scope"], base["name"]
    else:
        fields, scope = dict(rng.choice(KINDS)), rng.choice(SCOPES)
        called = rng.choice(SPAN_NAMES)
    fields |= {name(rng): value(rng) for _ in range(rng.randrange(5))}
    if rng.random() < 0.6:
        fields |= {rng.choice(HOLDERS): json.dumps(messages(rng)) for _ in range(4)}
    start, end = _times(rng)
    return {
        **span(_id(rng, place), fields, parent=_parent(rng, place), scope=scope),
        "name": called,
        "start": start,
        "end": end,
        "status": rng.choice(["Unset", "Ok", "Error", "", None]),
        "message": rng.choice([None, "", "boom(", "ValueError('x')", "\x00"]),
        "links": rng.sample(IDS, rng.randrange(3)),
        "rollout_id": rng.choice(["ro", "ro", None]),
        "attempt": rng.choice(["1", None]),
        "wave": rng.choice([0, 1, None, 2**31 - 1]),
        "process": rng.choice(["worker", None]),
        "outcome": rng.choice(OUTCOMES),
        "reported": rng.choice([None, None, 0, 5, -3, 2**63 - 1]),
        "events": json.dumps([_event(rng) for _ in range(rng.randrange(3))]),
        "logs": json.dumps([_log(rng) for _ in range(rng.randrange(1, 3))])
        if rng.random() < 0.3
        else None,
    }


def _id(rng: Random, place: int) -> str:
    return IDS[place] if rng.random() < 0.9 else rng.choice(IDS)


def _parent(rng: Random, place: int) -> str | None:
    """Return mostly an earlier span, sometimes any one, which creates cycles."""
    if rng.random() < 0.1:
        return rng.choice(IDS)
    before: tuple[str | None, ...] = (None, *IDS[:place])
    return rng.choice(before)


def _times(rng: Random) -> tuple[int, int]:
    if rng.random() < 0.1:
        return rng.choice(EDGES), rng.choice(EDGES)
    start = NOON + rng.randrange(-5 * MS, 5 * MS)
    return start, start + rng.randrange(5 * MS)


EVENTS = (attributes.SPAN_EVALUATION, "exception", "gen_ai.choice", "", "\x00")
SAID = (
    *(attributes.EVALUATION_NAME, attributes.EVALUATION_VALUE, attributes.REWARD_SCOPE),
    *("exception.type", "gen_ai.input.messages", "gen_ai.output.messages"),
    "gen_ai.system_instructions",
)
LOGGED = (
    *("gen_ai.choice", "gen_ai.user.message", "gen_ai.tool.message", "gen_ai..message", ""),
    *("gen_ai.client.inference.operation.details", attributes.SPAN_EVALUATION),
)


def _event(rng: Random) -> list[Any]:
    """Return a span's event, as the store writes it."""
    return [rng.choice(EVENTS), {rng.choice(SAID): value(rng) for _ in range(rng.randrange(4))}]


def _log(rng: Random) -> list[Any]:
    """Return a span's log record, as the store writes it."""
    fields = json.dumps({rng.choice(SAID): value(rng) for _ in range(rng.randrange(3))})
    place = rng.choice(EDGES), rng.choice(SCOPES), rng.random() < 0.8
    return [rng.choice(LOGGED), value(rng), fields, *place]


def trace(seed: int) -> Trace:
    """Return the trace of a seed: to draw each value from hypothesis takes 50 times as long."""
    rng = Random(seed)
    return Trace(tuple(_span(rng, place) for place in range(rng.randrange(1, 9))))


TRACES = st.integers(0, 2**64).map(trace)


def smallest(trace: Trace, fails: Callable[[Trace], bool]) -> Trace:
    """Return a minimal failing trace: remove spans, then attributes."""
    for row in trace.rows:
        less = Trace(tuple(one for one in trace.rows if one is not row))
        if less.rows and fails(less):
            trace = less
    for place, row in enumerate(trace.rows):
        for each in row["attributes"]:
            own = dict(trace.rows[place])
            own["attributes"] = {k: v for k, v in own["attributes"].items() if k != each}
            less = Trace((*trace.rows[:place], own, *trace.rows[place + 1 :]))
            trace = less if fails(less) else trace
    return trace
