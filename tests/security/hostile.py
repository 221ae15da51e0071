"""Traces of an adversary: spans of every dialect with values and structures that nobody writes.

Attribute names come from the dialects' own modules and from the captures in `tests/fixtures`, so a
new dialect is attacked without a change here.
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import polars as pl
from hypothesis import strategies as st
from tests.transforms.made import MS, NOON, Row, span, spans

from ltrain_instrument import attributes
from ltrain_transforms import annotations, dialects

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODULES = [
    annotations,
    attributes,
    *(
        import_module(f"{dialects.__name__}.{found.name}")
        for found in iter_modules(dialects.__path__)
    ),
]
"""Modules whose string literals may be names of attributes."""

HUGE = "9" * 5_000
"""An integer beyond Python's limit of 4,300 digits for text."""
HALF = "\\ud83d"
"""JSON of half a surrogate pair."""


def deep(levels: int, key: str | None = None) -> str:
    """Return JSON that is nested so deep: lists, or objects with one key."""
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
LEAVES = st.sampled_from(
    [
        *(None, True, False, 0, -1, 2**31, 2**63, 2**64, -(2**70), 1.5, float("nan"), float("inf")),
        *("", "\x00", "\ud83d", "text", "{", "[1", '{"a": 1}', "1", "tool", "llm", "a" * 300),
    ]
)
STRUCTURES = st.recursive(
    LEAVES | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=6,
)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_call", "tool_call_response", "image", 5, None, []])},
    optional={name: STRUCTURES for name in ("content", "id", "name", "arguments", "response")},
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["user", "assistant", "tool", "system"]) | STRUCTURES,
            "parts": st.lists(PART | STRUCTURES, max_size=3) | STRUCTURES,
            "content": STRUCTURES,
            "tool_calls": STRUCTURES,
            "finish_reason": STRUCTURES,
        },
    )
    | STRUCTURES,
    max_size=4,
)
VALUES = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.sampled_from(BROKEN),
    st.sampled_from(TOKENS),
    st.sampled_from(PYTHON),
    MESSAGES.map(json.dumps),
    STRUCTURES.map(json.dumps),
    STRUCTURES.map(lambda value: json.dumps(json.dumps(value))),
)


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
    said = {each["key"]: _text(each["value"]) for each in one.get("attributes", ())}
    return {**span(one["spanId"], said, scope=scope), "name": one["name"]}


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
INDEXED = st.builds(
    lambda *parts: ".".join(parts),
    st.sampled_from(PREFIXES),
    st.sampled_from(INDICES),
    st.sampled_from(SUFFIXES),
)
NAMES = st.deferred(lambda: st.sampled_from(names()) | INDEXED)

KINDS: tuple[dict[str, str], ...] = (
    {"gen_ai.operation.name": "chat"},
    {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t"},
    {"gen_ai.operation.name": "retrieval"},
    {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "a"},
    {"mcp.method.name": "tools/call"},
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
SPAN_NAMES = (
    *("chat", "", "\x00", "Agent.run", "a.on_messages_stream", "Tool.acall", "X._inner"),
    *(attributes.SPAN_EVALUATION, attributes.SPAN_ROLLOUT, attributes.SPAN_PROCESS),
    *(attributes.SPAN_DISPATCH, attributes.SPAN_STEP, annotations.AGENT_LIGHTNING),
)
EDGES = (0, 1, -1, 2**63 - 1, -(2**63), NOON, NOON + MS, NOON - MS, 10**18)
OUTCOMES = ("ok", "error", "timeout", "infra", "cancelled", "x", "\x00", None, None)
IDS = st.sampled_from("abcdef")


# spans and traces

PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=6).map(dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """One execution of an adversary, and some that say nothing strange beside it."""

    rows: tuple[Row, ...]

    def named(self, number: int) -> list[Row]:
        """Return its rows under ids of its own, so that many traces can stand in one frame."""

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


@st.composite
def _rows(draw: st.DrawFn) -> Row:
    """Make a span: of a dialect, or a captured one, with some attributes replaced."""
    if draw(st.booleans()):
        base = draw(st.sampled_from(captured()))
        own = sorted(base["attributes"])
        replaced = draw(st.lists(st.sampled_from(own), max_size=4)) if own else []
        said = {**base["attributes"], **{name: draw(VALUES) for name in replaced}}
        scope, name = base["scope"], base["name"]
    else:
        said, scope = dict(draw(st.sampled_from(KINDS))), draw(st.sampled_from(SCOPES))
        name = draw(st.sampled_from(SPAN_NAMES))
    said |= draw(PAIRS)
    at = st.sampled_from(EDGES) | st.integers(NOON - 5 * MS, NOON + 5 * MS)
    start, length = draw(at), draw(st.integers(0, 5 * MS))
    outcome = draw(st.sampled_from(OUTCOMES))
    return {
        **span(draw(IDS), said, parent=draw(st.none() | IDS), scope=scope),
        "name": name,
        "start": start,
        "end": draw(at) if draw(st.integers(0, 9)) == 0 else min(start + length, 2**63 - 1),
        "status": draw(st.sampled_from(["Unset", "Ok", "Error", "", None])),
        "message": draw(st.sampled_from([None, "", "boom(", "ValueError('x')", "\x00"])),
        "links": draw(st.lists(IDS, max_size=2)),
        "rollout_id": draw(st.sampled_from(["ro", "ro", None])),
        "attempt": draw(st.sampled_from(["1", None])),
        "wave": draw(st.sampled_from([0, 1, None, 2**31 - 1])),
        "process": draw(st.sampled_from(["worker", None])),
        "outcome": outcome,
        "reported": draw(st.sampled_from([None, None, 0, 5, -3, 2**63 - 1])),
        "events": draw(EVENTS),
        "logs": draw(LOGGED),
    }


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([attributes.SPAN_EVALUATION, "exception", "gen_ai.choice", "", "\x00"]),
        st.dictionaries(
            st.sampled_from(
                [
                    *(attributes.EVALUATION_NAME, attributes.EVALUATION_VALUE),
                    *(attributes.REWARD_SCOPE, "exception.type"),
                ]
            ),
            st.sampled_from((*NUMBERS, *TEXTS)),
            max_size=3,
        ),
    ),
    max_size=2,
).map(json.dumps)
"""A span's events, as the store writes them."""

LOGGED = st.none() | st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("gen_ai.choice", "gen_ai.user.message", "gen_ai.tool.message", "gen_ai..message"),
                *("gen_ai.client.inference.operation.details", attributes.SPAN_EVALUATION, ""),
            ]
        ),
        VALUES,
        st.dictionaries(
            st.sampled_from(
                [
                    *("gen_ai.input.messages", "gen_ai.output.messages"),
                    *("gen_ai.system_instructions", attributes.EVALUATION_VALUE),
                    *(attributes.EVALUATION_NAME, attributes.REWARD_SCOPE),
                ]
            ),
            VALUES,
            max_size=2,
        ).map(json.dumps),
        st.sampled_from(EDGES),
        st.sampled_from(SCOPES),
        st.booleans(),
    ),
    max_size=2,
).map(json.dumps)
"""A span's log records, as the store writes them."""

TRACES = st.lists(_rows(), min_size=1, max_size=6).map(lambda rows: Trace(tuple(rows)))
