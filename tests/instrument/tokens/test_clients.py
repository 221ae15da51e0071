"""Policy calls recorded at the HTTP client: what the client sees, and what the spans contain.

Every case runs in a plain process and in an instrumented one; the client must see the same in both.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fake_vllm import FakeVllm, logprob
from tests.instrument.conftest import AGENTS, LAUNCHER, ReceivedSpan, Sink, Start
from tests.otlp import insert_otlp, open_empty_store

from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
Case = tuple[str, str, str, dict[str, Any]]
"""Client, policy server, route and body of a request."""


def chat(
    client: str,
    content: str = "go w3 h7 w14",
    url: str = "policy",
    route: str = CHAT,
    **extra: Any,
) -> Case:
    messages = [{"role": "user", "content": content}]
    return client, url, route, {"model": "sql", "messages": messages, "temperature": 0.5, **extra}


def text(client: str, prompt: Any = "go w3 h7 w14", **extra: Any) -> Case:
    return client, "policy", TEXT, {"model": "sql", "prompt": prompt, "temperature": 0.5, **extra}


REFUSED = [True, False, False, True, False, True, False]
"""Whether each request to a server without token ids asks for them, in its four cases."""
STREAM: dict[str, Any] = {"stream": True}
SUCCESSFUL: dict[str, Case] = {
    "openai": chat("openai"),
    "openaistream": chat("openai", **STREAM),
    "openaiasync": chat("openai_async"),
    "openaiasyncstream": chat("openai_async", **STREAM),
    "openaitext": text("openai_completions"),
    "openaitextstream": text("openai_completions", **STREAM),
    "httpx": chat("httpx"),
    "httpxzip": chat("httpx", "go w3 h7 w14 zip"),
    "httpxstream": chat("httpx_stream", **STREAM),
    "httpxasync": chat("httpx_async", **STREAM),
    "httpxasynczip": chat("httpx_async", "go w3 h7 w14 zip", **STREAM),
    "aiohttp": chat("aiohttp"),
    "aiohttpzip": chat("aiohttp", "go w3 h7 w14 zip", **STREAM),
    "aiohttplines": chat("aiohttp_lines", **STREAM),
    "aiohttpchunks": chat("aiohttp_chunks", **STREAM),
    "requests": chat("requests"),
    "requestszip": chat("requests", "go w3 h7 w14 zip", **STREAM),
    "requestslines": chat("requests_lines", **STREAM),
    "requestsraw": chat("requests_raw", **STREAM),
    "askedforids": chat("httpx_stream", return_token_ids=True, **STREAM),
    "askedforlogprobs": chat("httpx", logprobs=True),
    "askedforall": chat("requests", logprobs=True, return_token_ids=True),
    "once": chat("openai", "go w3 h7 w14 once"),
}
FAILED: dict[str, tuple[Case, str, str, str]] = {
    "wrong": (chat("httpx", "w3 wrong"), "400", "a wrong request", "[]"),
    "boom": (chat("requests", "w3 boom"), "500", "the engine is dead", "[]"),
    "boomaio": (chat("aiohttp", "w3 boom"), "500", "the engine is dead", "[]"),
    "leaves": (
        chat("openai_leaves", "w3 slow w14", **STREAM),
        "cancelled",
        "the client went away",
        "[3]",
    ),
    "holds": (
        chat("openai_holds", "w3 slow w14", **STREAM),
        "cancelled",
        "the client went away",
        "[3]",
    ),
    "leavesaio": (
        chat("aiohttp_leaves", "w3 slow w14", **STREAM),
        "cancelled",
        "the client went away",
        "[3]",
    ),
    "vanish": (chat("httpx_stream", "w3 w14 vanish", **STREAM), "RemoteProtocolError", "", "[3]"),
    "vanishaio": (chat("aiohttp", "w3 w14 vanish", **STREAM), "ClientPayloadError", "", "[3]"),
    "vanishreq": (chat("requests", "w3 w14 vanish", **STREAM), "ProtocolError", "", "[3]"),
}
UNRECORDED: dict[str, Case] = {
    "elsewhere": chat("httpx", url="elsewhere"),
    "generator": chat("httpx_generator"),
    "prompts": text("requests", ["w3", "w4"]),
    "echo": text("aiohttp", echo=True),
    "unwilling": chat("httpx", url="unwilling"),
    "unwillingagain": chat("httpx", url="unwilling"),
    "unwillingaio": chat("aiohttp", url="unwilling", route="/aio" + CHAT),
    "unwillingreq": chat("requests", url="unwilling", route="/req" + CHAT),
}
CASES = SUCCESSFUL | {name: case for name, (case, *_) in FAILED.items()} | UNRECORDED


@dataclass(frozen=True)
class Run:
    uninstrumented: dict[str, list[str]]
    instrumented: dict[str, list[str]]
    warnings: list[str]
    sink: Sink

    def spans(self, name: str) -> list[ReceivedSpan]:
        """Return the recorded calls of a case, in the order in which they ended."""
        captured = [span for span in self.sink.spans if span.scope == "ltrain.capture"]
        return [span for span in captured if span.attributes["ltrain.rollout.id"] == name]


def run_client(
    servers: dict[str, str], home: Path, *launcher: str, sink: Sink
) -> tuple[Any, list[str]]:
    cases = {name: (case[0], servers[case[1]], *case[2:]) for name, case in CASES.items()}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LTRAIN_"))}
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
        "LTRAIN_HOME": str(home),
        "LTRAIN_POLICY_URLS": f"{servers['policy']}/v1, {servers['unwilling']}",
        "LTRAIN_POLICY_VERSION": "4",
        "OPENAI_API_KEY": "none",
    }
    completed = subprocess.run(
        [*launcher, sys.executable, str(AGENTS / "asking.py"), json.dumps(cases)],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(completed.stdout), completed.stderr.splitlines()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    home, sink = tmp_path_factory.mktemp("home"), Sink()
    sink.start()
    results = []
    for launcher in ([], [str(LAUNCHER)]):
        with FakeVllm() as policy, FakeVllm() as elsewhere, FakeVllm() as unwilling:
            unwilling.knows_token_ids = False
            servers = {"policy": policy, "elsewhere": elsewhere, "unwilling": unwilling}
            urls = {name: server.url for name, server in servers.items()}
            results.append(run_client(urls, home, *launcher, sink=sink))
            requested = [bool(body.get("return_token_ids")) for body in unwilling.requests]
            assert requested == (REFUSED if launcher else [False] * 4)
            assert not any(body.get("return_token_ids") for body in elsewhere.requests)
    (uninstrumented, stderr), (instrumented, warnings) = results
    assert stderr == []
    yield Run(uninstrumented, instrumented, warnings, sink)
    sink.stop()


def encode_logprobs(*tokens: int) -> str:
    return b64encode(struct.pack(f"<{len(tokens)}f", *map(logprob, tokens))).decode()


def message_json(role: str, content: str, **extra: str) -> str:
    message = {"role": role, "parts": [{"type": "text", "content": content}], **extra}
    return json.dumps([message], separators=(",", ":"))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CASES)
def test_the_client_sees_the_same_as_without_ltrain(run: Run, name: str) -> None:
    assert run.instrumented[name] == run.uninstrumented[name]
    assert run.uninstrumented[name]


@pytest.mark.parametrize("name", SUCCESSFUL)
def test_an_answered_call_is_recorded_token_by_token(run: Run, name: str) -> None:
    _, _, route, body = SUCCESSFUL[name]
    prompt = body["prompt"] if route == TEXT else body["messages"][0]["content"]
    operation = "text_completion" if route == TEXT else "chat"
    *_, span = run.spans(name)
    assert (span.name, span.status) == (f"{operation} sql", 0)
    attributes = dict(span.attributes)
    (reason,) = attributes.pop("gen_ai.response.finish_reasons").values
    assert reason.string_value == "stop"
    streams = bool(body.get("stream"))
    response = ("w3h7w14" if route == TEXT else " w3 w14") if streams else "w3 w14"
    prompt_ids = [1000 + place for place in range(len(prompt.split()))]
    assert attributes == {
        "ltrain.rollout.id": name,
        "ltrain.attempt.id": 0,
        "ltrain.mode": "prod",
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "sql",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.input.messages": message_json("user", prompt),
        "ltrain.policy.name": "sql",
        "ltrain.policy.version": 4,
        "gen_ai.response.id": "cmpl-1" if route == TEXT else "chatcmpl-1",
        "gen_ai.response.model": "sql",
        "gen_ai.output.messages": message_json("assistant", response, finish_reason="stop"),
        "gen_ai.usage.input_tokens": len(prompt.split()),
        "gen_ai.usage.output_tokens": 3,
        **({} if streams else {"gen_ai.usage.cache_read.input_tokens": 1}),
        "ltrain.prompt_token_ids": json.dumps(prompt_ids, separators=(",", ":")),
        "ltrain.prompt_token_count": len(prompt.split()),
        "ltrain.response_token_ids": "[3,7,14]",
        "ltrain.response_logprobs": encode_logprobs(3, 7, 14),
        "ltrain.response_token_count": 3,
        "ltrain.delivered": True,
    }


@pytest.mark.parametrize("name", FAILED)
def test_a_failed_call_has_its_error_and_partial_response(run: Run, name: str) -> None:
    _, kind, _, ids = FAILED[name]
    spans = run.spans(name)
    assert spans
    for span in spans:
        assert (span.status, span.attributes.get("error.type")) == (2, kind), span.attributes
        assert span.attributes["ltrain.delivered"] is False
        assert span.attributes.get("ltrain.response_token_ids", "[]") == ids


@pytest.mark.parametrize("name", ["elsewhere", "generator", "prompts", "echo", "unwillingagain"])
def test_an_unrecorded_call_has_no_span(run: Run, name: str) -> None:
    assert run.spans(name) == []


def test_a_server_without_token_ids_is_one_warning_and_still_answers(run: Run) -> None:
    for name in ("unwilling", "unwillingaio", "unwillingreq"):
        (span,) = run.spans(name)
        assert span.attributes["ltrain.delivered"] is True
        assert "ltrain.response_token_ids" not in span.attributes
    warning = "is in LTRAIN_POLICY_URLS, but answers 400 to a request for token ids"
    assert [warning in line for line in run.warnings if "ltrain: " in line] == [True] * 3


def test_the_call_is_below_the_clients_span_and_above_failed_requests(run: Run) -> None:
    by_id = {span.id: span for span in run.sink.spans}
    for name in ("openai", "openaiasyncstream", "once"):
        for span in run.spans(name):
            assert by_id[span.parent].name == "openai.chat"
            below = [each for each in run.sink.spans if each.parent == span.id]
            failures = [(each.name, each.attributes["error.type"]) for each in below]
            assert failures == ([("POST", "500")] if span.status == 2 else [])
    assert [span.status for span in run.spans("once")] == [2, 0]


def test_each_rollouts_call_is_one_with_its_tokens(run: Run, tmp_path: Path) -> None:
    first, last = run.spans("once")
    assert (first.status, last.status) == (2, 0)
    with open_empty_store(tmp_path / "store") as store:
        for _, _, request in run.sink.requests:
            insert_otlp(store, request)
        spans, _ = read_spans(store, Source(), Selection())
    calls_frame, _ = calls(spans)
    rows = {
        row["execution_id"].split(".")[0]: (row["delivered"], row["policy_version"], ids)
        for row in calls_frame.to_dicts()
        if row["kind"] == "llm" and (ids := row["response_token_ids"]) is not None
    }
    counts = calls_frame.filter(kind="llm")["execution_id"].value_counts()
    assert counts.filter(counts["count"] != 1).rows() == []
    expected = {name: (True, 4, [[3, 7, 14]]) for name in SUCCESSFUL}
    cut = {name for name, (*_, ids) in FAILED.items() if ids != "[]"}
    assert rows == expected | {name: (False, 4, [[3]]) for name in cut}


def test_an_agent_that_instruments_itself_is_recorded(start: Start, sink: Sink) -> None:
    with FakeVllm() as policy:
        client, _, *rest = chat("httpx")
        cases = json.dumps({"r": [client, policy.url, *rest]})
        agent = start("asking", cases, "itself", uninstrumented=True, LTRAIN_POLICY_URLS=policy.url)
        assert agent.wait()[0] == 0
    (span,) = [span for span in sink.spans if span.scope == "ltrain.capture"]
    assert span.attributes["ltrain.response_token_ids"] == "[3,7,14]"
    assert "ltrain.policy.version" not in span.attributes
