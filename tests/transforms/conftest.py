"""Build rollouts by hand, as the real processes emit them, and a real chDB store for them."""

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack
from typing import Any

import polars as pl
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_collector.store import Store
from ltrain_instrument.identity import Identity, rollout_id
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.source import Selection, read_spans

NOON = 1_790_000_000_000_000_000
"""Nanoseconds; a day in 2026."""
MS = 1_000_000
LANGCHAIN = "openinference.instrumentation.langchain"
OPENAI = "opentelemetry.instrumentation.openai.v1"
GATEWAY = "ltrain.gateway"
RUNNER = "ltrain.runner"

Value = str | int | float | bool
Attributes = dict[str, Value]


@dataclass(kw_only=True)
class SpanSpec:
    """One span, before it is encoded."""

    trace: str
    span: str
    start: int
    end: int
    scope: str
    name: str
    attributes: Attributes
    parent: str = ""
    process: str = "worker"
    error: str = ""
    """The status message of a failure."""
    events: Sequence[tuple[str, Attributes]] = ()
    links: Sequence[tuple[str, str]] = ()


@dataclass
class Attempt:
    """One attempt at a rollout: each method emits the spans of one real component."""

    identity: Identity
    clock: int = NOON
    number: int = 0
    spans: list[SpanSpec] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rollout = str(self.identity.rollout)
        self.execution = f"{self.rollout}.{self.identity.attempt}"
        self.trace = f"{self.rollout[:31]}{self.identity.attempt}"

    def id(self, number: int) -> str:
        return f"{self.rollout[:11]}{self.identity.attempt}{number:04x}"

    def emit(
        self, name: str, scope: str, attributes: Attributes, *, named: bool = True, **more: Any
    ) -> str:
        """End a span now; `named` spans carry the identity, `more` are fields of `SpanSpec`."""
        self.number += 1
        self.clock += MS
        identity = self.identity.attributes() if named else {}
        fields: dict[str, Any] = {
            "trace": self.trace,
            "span": self.id(self.number),
            "start": self.clock - MS,
            "end": self.clock,
            "attributes": {**identity, **attributes},
        }
        self.spans.append(SpanSpec(name=name, scope=scope, **{**fields, **more}))
        return self.spans[-1].span

    def dispatch(self) -> str:
        return self.emit("ltrain.rollout.dispatch", RUNNER, {}, process="runner")

    def llm(
        self,
        node: str = "write",
        prompt: Sequence[int] = (1, 2, 3),
        response: Sequence[int] = (4, 5),
        *,
        text: str = "answer",
        tool_calls: Sequence[dict[str, Any]] = (),
        ids: bool = True,
        state: dict[str, Any] | None = None,
        gateway: Attributes | None = None,
    ) -> str:
        """Emit a model call in a LangGraph node: node, framework, SDK and gateway span."""
        begin, self.clock = self.clock, self.clock + 3 * MS
        chain, outer, sdk = (self.id(self.number + back) for back in (4, 3, 2))
        parts: list[dict[str, Any]] = [{"type": "text", "content": text}] if text else []
        parts += [{"type": "tool_call", **call} for call in tool_calls]
        prompt_messages = [{"role": "user", "parts": [{"type": "text", "content": "question"}]}]
        answer = json.dumps([{"role": "assistant", "parts": parts, "finish_reason": "stop"}])
        request: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "sql",
            "gen_ai.response.id": f"chatcmpl-{self.id(self.number)}",
            "gen_ai.input.messages": json.dumps(prompt_messages),
            "gen_ai.output.messages": answer,
        }
        measured = {
            "ltrain.policy.name": "sql",
            "ltrain.policy.version": 0,
            "gen_ai.request.temperature": 1.0,
            **(tokens(prompt, response) if ids else {}),
            **(gateway or {}),
        }
        recorded = {**request, **measured}
        self.emit(
            "chat sql", GATEWAY, recorded, process="gateway", parent=sdk, start=begin + 3 * MS
        )
        self.emit("openai.chat", OPENAI, request, parent=outer, start=begin + 2 * MS)
        framework: Attributes = {
            "openinference.span.kind": "LLM",
            "llm.model_name": "sql",
            "metadata": json.dumps({"langgraph_node": node}),
            "gen_ai.output.messages": answer,
        }
        outside = self.emit("ChatOpenAI", LANGCHAIN, framework, parent=chain, start=begin + MS)
        self.node(node, begin, state)
        return outside

    def tool(
        self,
        name: str = "execute_query",
        *,
        error: str = "",
        result: str = "rows",
        arguments: str = '{"query": "SELECT 1"}',
        state: dict[str, Any] | None = None,
    ) -> str:
        """Emit a tool call in a LangGraph node of the same name."""
        begin, self.clock = self.clock, self.clock + MS
        attributes: Attributes = {
            "openinference.span.kind": "TOOL",
            "tool.name": name,
            "input.value": arguments,
            "metadata": json.dumps({"langgraph_node": name}),
            **({} if error else {"output.value": result}),
        }
        chain = self.id(self.number + 2)
        own = self.emit(name, LANGCHAIN, attributes, parent=chain, start=begin + MS, error=error)
        self.node(name, begin, state)
        return own

    def node(self, name: str, begin: int, state: dict[str, Any] | None = None) -> str:
        attributes: Attributes = {} if state is None else {"input.value": json.dumps(state)}
        attributes |= {"openinference.span.kind": "CHAIN"}
        attributes |= {"metadata": json.dumps({"langgraph_node": name})}
        return self.emit(name, LANGCHAIN, attributes, start=begin)

    def evaluate(self, value: Value, name: str = "reward", by: str = RUNNER, **more: Any) -> str:
        attributes: Attributes = {
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.value": value,
            "ltrain.reward.scope": more.pop("scope", "rollout"),
        }
        if explanation := more.pop("explanation", ""):
            attributes["gen_ai.evaluation.explanation"] = explanation
        process = "runner" if by == RUNNER else "worker"
        return self.emit("gen_ai.evaluation.result", by, attributes, process=process, **more)

    def close(self, outcome: str = "ok", *, missing: int = 0, reason: str = "") -> "Attempt":
        """Report the spans of every process, `missing` more for the worker, and close."""
        reports = ("ltrain.process", "ltrain.rollout")
        own = [
            s for s in self.spans if "ltrain.rollout.id" in s.attributes and s.name not in reports
        ]
        ended = Counter(span.process for span in own) + Counter(worker=missing)
        for process in ("worker", "gateway"):
            counted: Attributes = {"ltrain.rollout.spans": ended[process]}
            self.emit("ltrain.process", "ltrain.instrument", counted, process=process)
        attributes: Attributes = {
            "ltrain.rollout.outcome": outcome,
            "ltrain.rollout.spans": ended["runner"],
            "ltrain.tasks.digest": "d1g357",
            **({"ltrain.rollout.reason": reason} if reason else {}),
        }
        self.emit("ltrain.rollout", RUNNER, attributes, process="runner")
        return self


def tokens(prompt: Sequence[int], response: Sequence[int]) -> Attributes:
    """Return the gateway's token attributes; every log-probability is -0.5."""
    floats = pack(f"<{len(response)}f", *(-0.5 for _ in response))
    return {
        "ltrain.prompt_token_ids": json.dumps(list(prompt), separators=(",", ":")),
        "ltrain.response_token_ids": json.dumps(list(response), separators=(",", ":")),
        "ltrain.response_logprobs": b64encode(floats).decode(),
        "ltrain.prompt_token_count": len(prompt),
        "ltrain.response_token_count": len(response),
    }


@dataclass
class Scene:
    """Attempts of one run."""

    run: str = "demo"
    attempts: list[Attempt] = field(default_factory=list)

    def attempt(self, task: str = "t1", sample: int = 0, attempt: int = 1, **more: Any) -> Attempt:
        who: dict[str, Any] = {"mode": "train", "wave": 0, **more, "run": self.run, "task": task}
        rollout = rollout_id(**who, sample=sample)
        identity = Identity(**who, sample=sample, rollout=rollout, attempt=attempt, domain="db")
        self.attempts.append(Attempt(identity, clock=NOON + attempt * 3_600_000 * MS))
        return self.attempts[-1]

    def request(self, order: Callable[[list[SpanSpec]], list[SpanSpec]] = list) -> bytes:
        """Serialise all spans as one OTLP request."""
        request = ExportTraceServiceRequest()
        for span in order([span for attempt in self.attempts for span in attempt.spans]):
            resource = request.resource_spans.add()
            for name in ("service.name", "service.instance.id"):
                resource.resource.attributes.add(key=name).value.string_value = span.process
            scoped = resource.scope_spans.add()
            scoped.scope.name = span.scope
            _encode(scoped.spans.add(), span)
        return bytes(request.SerializeToString())


def _encode(into: Any, span: SpanSpec) -> None:
    into.name = span.name
    into.trace_id, into.span_id = bytes.fromhex(span.trace), bytes.fromhex(span.span)
    into.parent_span_id = bytes.fromhex(span.parent)
    into.start_time_unix_nano, into.end_time_unix_nano = span.start, span.end
    into.status.code, into.status.message = (2 if span.error else 0), span.error
    _fill(into, span.attributes)
    for name, values in span.events:
        _fill(into.events.add(name=name, time_unix_nano=span.end), values)
    for trace, linked in span.links:
        into.links.add(trace_id=bytes.fromhex(trace), span_id=bytes.fromhex(linked))


def _fill(into: Any, attributes: Attributes) -> None:
    kinds = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}
    for key, value in attributes.items():
        setattr(into.attributes.add(key=key).value, kinds[type(value)], value)


RECIPE = """
source = { run = "demo" }
policy = [{ name = "sql", agents = ["write", "rewrite"] }]

[[reward]]
name = "answer"
evaluation = "reward"

[[reward]]
name = "tool-failed"
on = "tool"
when = "status = 'error'"
value = "-0.2"
credit_to = "requester"
min = -0.3
"""


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """Write the demo's recipe: the runner's outcome, and a penalty for failed queries."""
    path = tmp_path / "ltrain.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def recipe(recipe_file: Path) -> Recipe:
    return Recipe.load(recipe_file)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store in a folder."""
    with open_empty_store(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def read_back(store: Store, recipe: Recipe) -> Callable[[Scene], pl.DataFrame]:
    """Send a scene through OTLP and chDB, and read its spans as `SPANS`."""

    def through(scene: Scene) -> pl.DataFrame:
        insert_otlp(store, scene.request())
        return read_spans(store, recipe.source, Selection(run=scene.run))[0]

    return through
