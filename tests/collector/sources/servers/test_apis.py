"""Servers of Langfuse, LangSmith, Jaeger and Tempo, in the forms of their published APIs."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.collector.sources.servers.serving import Answer, Fault, Request, Served, serving
from tests.collector.sources.test_platforms import (
    GENERATION,
    SCORES,
    TOOL,
    TRACE,
    found,
    run,
    uuid,
)
from tests.collector.sources.test_readers import rows
from tests.otlp import open_empty_store

from ltrain_collector.errors import BadSource, SourceFailed
from ltrain_collector.sources import Window, open_server
from ltrain_collector.store import Store
from ltrain_collector.transfer.from_server import import_server
from ltrain_collector.transfer.importing import ImportCounts, import_files

SECOND = 1_000_000_000
START = 1_772_618_400 * SECOND
"""2026-03-04 10:00 UTC."""
WEEK = Window(since=START - 3600 * SECOND, until=START + 7200 * SECOND)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_empty_store(tmp_path / "store") as opened:
        yield opened


def imported(store: Store, source: str, window: Window = WEEK) -> tuple[ImportCounts, int]:
    address, server = open_server(source)
    counts, traces, _ = import_server(store, str(address), server, window, lambda _: None)
    assert counts.places == []
    return counts, traces


def langfuse(new: bool, entries: int = 1) -> Answer:
    """Return the API of version 4, or the older one, in pages of so many entries."""
    scores = [each | {"source": "ANNOTATION"} for each in SCORES]

    def subject(score: dict[str, Any]) -> dict[str, Any]:
        judged = score["observationId"]
        of_trace = {"kind": "trace", "id": score["traceId"]}
        of_call = {"kind": "observation", "id": judged, "traceId": score["traceId"]}
        core = {key: score[key] for key in score if key not in ("traceId", "observationId")}
        return {**core, "subject": of_call if judged else of_trace}

    new_lists = {
        "v2/observations": [
            {**each, "sessionId": "s-1", "isRootObservation": True, "traceName": "chat"}
            for each in (GENERATION, TOOL)
        ],
        "v3/scores": [subject(score) for score in scores],
    }
    old_lists = {"traces": [TRACE], "observations": [GENERATION, TOOL], "scores": scores}

    def answer(request: Request) -> Any:
        if request.path == "projects":
            return {"data": [{"id": "p", "name": "weather"}]}
        listed = (new_lists if new else old_lists).get(request.path)
        if listed is None:
            return None
        at = int(request.one("cursor" if new else "page", "0" if new else "1")) - (not new)
        some, more = listed[at * entries : (at + 1) * entries], len(listed) > (at + 1) * entries
        pages = {"page": at + 1, "totalPages": -(-len(listed) // entries)}
        meta = ({"cursor": str(at + 1)} if more else {}) if new else pages
        return {"data": some, "meta": meta}

    return answer


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("entries", [1, 100])
def test_langfuse(store: Store, monkeypatch: pytest.MonkeyPatch, new: bool, entries: int) -> None:
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk")
    with serving(langfuse(new, entries), "/api/public/") as served:
        counts, _ = imported(store, f"langfuse://127.0.0.1:{served.port}/weather")
        frame, scores = found(store)
        expected = [("node", "chat", "ok"), ("llm", "m", "ok"), ("tool", "get_weather", "error")]
        assert [(*row[:2], row[3]) for row in rows(frame)] == expected
        assert scores == [("", "thumbs", 1.0), ("get_weather", "useful", 0.25)]
        assert counts.records == 6
        roots = store.query("SELECT SpanName AS name FROM otel.spans WHERE ParentSpanId = ''")
        assert roots.filter(roots["name"] != "gen_ai.evaluation.result")["name"].to_list() == [
            "chat"
        ]
        assert {each.headers["Authorization"] for each in served.requests} == {"Basic cGs6c2s="}
        sessions = store.query("SELECT DISTINCT SessionId AS id FROM otel.spans WHERE id != ''")
        assert sessions["id"].to_list() == ["s-1"]


def langsmith(request: Request) -> Any:
    if request.path == "sessions":
        return [{"id": "p", "name": "weather"}]
    records = [
        run(1, "chain", "agent", None),
        run(2, "llm", "ChatOpenAI", 1, inputs={}, outputs={}, prompt_tokens=9, completion_tokens=4),
        run(3, "tool", "get_weather", 1, inputs={"input": "{}"}, error="TimeoutError('slow')"),
    ]
    if request.path == "runs/query":
        assert request.body["session"] == ["p"]
        roots = records[:1] if request.body.get("is_root") else records
        at = int(request.body.get("cursor") or 0)
        following = str(at + 2) if at + 2 < len(roots) else None
        return {"runs": roots[at : at + 2], "cursors": {"next": following}}
    shared = {"modified_at": "2026-03-04T11:00:00", "feedback_source": {"type": "app"}}
    feedback = [
        {**shared, "id": "f1", "run_id": uuid(1), "key": "thumbs", "score": True, "comment": "ok"},
        {**shared, "id": "f2", "run_id": uuid(3), "key": "kept", "score": 0, "value": "no"},
    ]
    return [each for each in feedback if each["run_id"] in request.query["run"]]


@pytest.mark.parametrize("limit", [None, 1])
def test_langsmith(store: Store, monkeypatch: pytest.MonkeyPatch, limit: int | None) -> None:
    monkeypatch.setenv("LANGSMITH_API_KEY", "lsv2")
    with serving(langsmith, "/api/") as served:
        source = f"langsmith://127.0.0.1:{served.port}/api/weather"
        window = Window(WEEK.since, WEEK.until, limit)
        counts, traces = imported(store, source, window)
        assert (counts.records, traces) == (5, 1)
        frame, scores = found(store)
        assert [row[:2] for row in rows(frame)] == [
            ("node", "agent"), ("llm", "ChatOpenAI"), ("tool", "get_weather"),
        ]  # fmt: skip
        assert scores == [("", "thumbs", 1.0), ("get_weather", "kept", 0.0)]
        authors = "SELECT DISTINCT SpanAttributes['ltrain.evaluation.author'] AS a FROM otel.spans"
        assert set(store.query(authors)["a"]) == {"", "human"}
        assert served.requests[0].headers["x-api-key"] == "lsv2"


def tag(key: str, value: object) -> dict[str, object]:
    kind = {bool: "bool", int: "int64"}.get(type(value), "string")
    return {"key": key, "type": kind, "value": value}


def jaeger_trace(number: int) -> dict[str, Any]:
    """Return a trace with a model's call and a tool that failed, as Jaeger's query API has it."""
    start = START // 1000 + number * 1_000_000

    def span(at: int, name: str, parent: int | None, *tags: dict[str, object]) -> dict[str, Any]:
        of = {"refType": "CHILD_OF", "traceID": f"{number:x}", "spanID": f"{parent}"}
        return {
            "traceID": f"{number:x}",
            "spanID": f"{at}",
            "operationName": name,
            "references": [of] if parent else [],
            "startTime": start + at,
            "duration": 10,
            "tags": [tag("otel.scope.name", "agent"), *tags],
            "logs": [],
            "processID": "p1",
        }

    chat = (tag("gen_ai.operation.name", "chat"), tag("gen_ai.request.model", "m"))
    used = (tag("gen_ai.usage.input_tokens", 9), tag("gen_ai.usage.output_tokens", 4))
    tool = (tag("gen_ai.operation.name", "execute_tool"), tag("gen_ai.tool.name", "get_weather"))
    raised = {
        "timestamp": start + 5,
        "fields": [tag("event", "exception"), tag("exception.type", "TimeoutError")],
    }
    return {
        "traceID": f"{number:x}",
        "spans": [
            span(1, "chat m", None, *chat, *used),
            span(2, "execute_tool get_weather", 1, *tool, tag("error", True)) | {"logs": [raised]},
        ],
        "processes": {"p1": {"serviceName": "weather", "tags": [tag("host.name", "h")]}},
    }


def jaeger(count: int) -> Callable[[Request], Any]:
    traces = [jaeger_trace(number) for number in range(1, count + 1)]

    def answer(request: Request) -> Any:
        if request.path == "services":
            return {"data": ["weather"]}
        start, end = int(request.one("start")), int(request.one("end"))
        inside = [each for each in traces if start <= each["spans"][0]["startTime"] <= end]
        return {"data": inside[-int(request.one("limit")) :]}

    return answer


@pytest.mark.parametrize("limit", [None, 7])
def test_jaeger_with_more_traces_than_an_answer_holds(store: Store, limit: int | None) -> None:
    with serving(jaeger(450), "/api/") as served:
        source = f"jaeger://127.0.0.1:{served.port}/weather"
        counts, traces = imported(store, source, Window(WEEK.since, WEEK.until, limit))
        assert traces == (limit or 450)
        assert counts.stored == 2 * traces
        frame, _ = found(store)
        assert [row[:-1] for row in rows(frame)[:2]] == [
            ("llm", "m", None, "ok", 9, 4),
            ("tool", "get_weather", None, "error", None, None),
        ]
        shown = (
            "SELECT DISTINCT ScopeName AS s, ResourceAttributes['host.name'] AS h FROM otel.spans"
        )
        assert store.query(shown).rows() == [("agent", "h")]
        assert store.query("SELECT Events.Name AS e FROM otel.spans WHERE e != []").height == traces


def tempo(request: Request) -> Any:
    if request.path.startswith("v2/search/tag/"):
        return {"tagValues": [{"type": "string", "value": 'my "agent"'}]}
    trace = bytes(range(16))
    if request.path == "search":
        assert request.one("q") == '{ resource.service.name = "my \\"agent\\"" }'
        start, end = int(request.one("start")), int(request.one("end"))
        found = {"traceID": trace.hex().lstrip("0"), "startTimeUnixNano": str(START)}
        return {"traces": [found] if start * SECOND <= START < end * SECOND else []}
    assert request.path == f"traces/{trace.hex()}"

    def text(value: str) -> dict[str, str]:
        return {"stringValue": value}

    span = {
        "traceId": b64encode(trace).decode(),
        "spanId": b64encode(bytes(range(1, 9))).decode(),
        "name": "chat m",
        "kind": "SPAN_KIND_CLIENT",
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(START + 5),
        "attributes": [
            {"key": "gen_ai.operation.name", "value": text("chat")},
            {"key": "gen_ai.request.model", "value": text("m")},
        ],
        "status": {},
    }
    service = {"attributes": [{"key": "service.name", "value": text('my "agent"')}]}
    scoped = {"scope": {"name": "agent"}, "spans": [span]}
    return {"batches": [{"resource": service, "scopeSpans": [scoped]}]}


def test_tempo(store: Store) -> None:
    with serving(tempo, "/api/") as served:
        source = f"tempo://127.0.0.1:{served.port}/my%20%22agent%22"
        counts, traces = imported(store, source)
        assert (counts.stored, traces) == (1, 1)
        [(trace, span, kind, scope)] = store.query(
            "SELECT TraceId, SpanId, SpanKind, ScopeName FROM otel.spans"
        ).rows()
        assert (trace, span) == (bytes(range(16)).hex(), bytes(range(1, 9)).hex())
        assert (kind, scope) == ("Client", "agent")
        assert rows(found(store)[0]) == [("llm", "m", None, "ok", None, None, None)]


def test_more_traces_in_a_second_than_an_answer_holds(store: Store) -> None:
    trace = jaeger_trace(1)

    def answer(request: Request) -> Any:
        if request.path == "services":
            return {"data": ["weather"]}
        start, end = int(request.one("start")), int(request.one("end"))
        inside = start <= trace["spans"][0]["startTime"] <= end
        return {"data": [trace] * 200 if inside else []}

    with serving(answer, "/api/") as served:
        address, server = open_server(f"jaeger://127.0.0.1:{served.port}/weather")
        counts, _, _ = import_server(store, str(address), server, WEEK, lambda _: None)
    assert counts.unreadable == 1
    assert counts.places[0].endswith("traces began in one second: the server lists no more of them")


LOGFIRE = Path("tests/fixtures/platforms/openai-agents__logfire-5.4.0.otlp.json")


def logfire_rows() -> list[dict[str, Any]]:
    """Return a capture as rows of `records`, in which JSON is a value."""
    rows = []
    for resource in json.loads(LOGFIRE.read_text())["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for one in scope["spans"]:
                values = {each["key"]: plain(each["value"]) for each in one["attributes"]}
                rows.append(
                    {
                        "trace_id": one["traceId"],
                        "span_id": one["spanId"],
                        "parent_span_id": one.get("parentSpanId") or None,
                        "span_name": one["name"],
                        "start_timestamp": moment(one["startTimeUnixNano"]),
                        "end_timestamp": moment(one["endTimeUnixNano"]),
                        "attributes": values,
                        "otel_status_code": status(one),
                        "otel_status_message": one["status"].get("message"),
                        "otel_events": [
                            {
                                "event_name": event["name"],
                                "event_timestamp": moment(event["timeUnixNano"]),
                                "attributes": {
                                    each["key"]: plain(each["value"])
                                    for each in event.get("attributes", [])
                                },
                            }
                            for event in one.get("events", [])
                        ],
                        "otel_scope_name": scope["scope"]["name"],
                        "service_name": "agent",
                    }
                )
    return rows


def status(span: dict[str, Any]) -> str:
    code = span["status"].get("code", 0)
    return "ERROR" if code in (2, "STATUS_CODE_ERROR") else "UNSET"


def moment(nanoseconds: str) -> str:
    return datetime.fromtimestamp(int(nanoseconds) // 1000 / 1e6, UTC).isoformat()


def plain(value: dict[str, Any]) -> Any:
    [(kind, content)] = value.items()
    if kind == "arrayValue":
        return [plain(each) for each in content.get("values", [])]
    if kind == "intValue":
        return int(content)
    if kind == "stringValue" and content[:1] in ("{", "["):
        return json.loads(content)
    return content


def test_logfire(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_files(store, [LOGFIRE], lambda _: None)
    expected = comparable(store)
    store.command("TRUNCATE TABLE otel.otel_traces")
    monkeypatch.setenv("LOGFIRE_READ_TOKEN", "pylf_v1_eu_abc")
    records = logfire_rows()
    newest = max(each["start_timestamp"] for each in records)
    until = int(datetime.fromisoformat(newest).timestamp() + 3600) * SECOND

    def answer(request: Request) -> Any:
        assert request.headers["Authorization"] == "pylf_v1_eu_abc"
        if request.path == "v1/read-token-info":
            return {"organization_name": "o", "project_name": "weather"}
        first, last = re.findall(r"start_timestamp >?<?=? '([^']*)'", request.body["sql"])
        inside = {
            each["trace_id"]
            for each in records
            if each["parent_span_id"] is None and first <= each["start_timestamp"] < last
        }
        return {"data": [each for each in records if each["trace_id"] in inside], "schema": {}}

    with serving(answer, "/") as served:
        source = f"logfire://127.0.0.1:{served.port}/weather"
        counts, _ = imported(store, source, Window(until - 48 * 3600 * SECOND, until))
        assert counts.stored == len(records)
        assert comparable(store) == expected


def comparable(store: Store) -> list[dict[str, Any]]:
    """Return the calls without times, and JSON as its value."""
    frame = found(store)[0].sort("start", "call_id")
    kept = frame.drop("start", "end", "gap").to_dicts()
    return [{name: parsed(value) for name, value in row.items()} for row in kept]


def parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(jaeger(1), "/api/") as running:
        yield running


def test_what_is_wrong_with_an_address(served: Served) -> None:
    here = f"127.0.0.1:{served.port}"
    for source, sentence in {
        f"jaegr://{here}/weather": "Did you mean jaeger://?",
        f"jaeger://{here}/": "is no project. Write jaeger://127.0.0.1:16686/PROJECT with one of "
        "its projects: weather.",
        f"jaeger://{here}/other": "has no project 'other'",
        f"jaeger://me:secret@{here}/weather": "Remove it: keys come from environment variables",
        "jaeger://127.0.0.1:port/weather": "is no address",
    }.items():
        with pytest.raises(BadSource, match=sentence.replace("?", r"\?")) as raised:
            open_server(source)
        assert "secret" not in str(raised.value)


def test_what_a_server_may_answer(served: Served) -> None:
    source = f"jaeger://127.0.0.1:{served.port}/weather"
    for fault, sentence in {
        (401, b"no key"): "answers 401 Unauthorized: 'no key'. Set JAEGER_TOKEN",
        (500, b"oops"): "answers 500 Internal Server Error: 'oops'",
        (200, b"<html>"): "answers with no JSON but '<html>'",
        (302, b""): "answers 302 Found",
    }.items():
        served.faults = {len(served.requests): Fault(*fault)}
        with pytest.raises(SourceFailed, match=sentence):
            open_server(source)
    busy = Fault(429, b"slow down", {"Retry-After": "0"})
    cut = Fault(cut=True)
    number = len(served.requests)
    served.faults = {number: busy, number + 1: busy, number + 2: cut}
    open_server(source)
    assert len(served.requests) == number + 4


def test_a_server_that_is_down() -> None:
    with pytest.raises(SourceFailed, match=r"does not answer: .*refused.*Check the address"):
        open_server("jaeger://127.0.0.1:1/weather")


@pytest.mark.parametrize(("most", "traces"), [(20_000, 60), (100, 0)])
def test_answers_that_are_too_large_are_asked_for_in_parts(
    store: Store, monkeypatch: pytest.MonkeyPatch, most: int, traces: int
) -> None:
    monkeypatch.setattr("ltrain_collector.sources.servers.api.MAX_BYTES", most)
    with serving(jaeger(60), "/api/") as served:
        source = f"jaeger://127.0.0.1:{served.port}/weather"
        if traces:
            assert imported(store, source)[1] == traces
            return
        with pytest.raises(SourceFailed, match="traces is larger than 0 MiB"):
            imported(store, source)


@pytest.mark.parametrize("most", [4_000, 100])
def test_pages_that_are_too_large_have_fewer_entries(
    store: Store, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("ltrain_collector.sources.servers.api.MAX_BYTES", most)

    def answer(request: Request) -> Any:
        if request.path == "runs/query":
            at, limit = int(request.body.get("cursor") or 0), request.body["limit"]
            runs = [
                run(number, "chain", "agent", None) for number in range(at, min(at + limit, 40))
            ]
            return {"runs": runs, "cursors": {"next": str(at + limit) if at + limit < 40 else None}}
        return [] if request.path == "feedback" else langsmith(request)

    with serving(answer, "/api/") as served:
        source = f"langsmith://127.0.0.1:{served.port}/api/weather"
        if most == 4_000:
            assert imported(store, source)[0].stored == 40
            return
        with pytest.raises(SourceFailed, match="runs/query is larger than 0 MiB"):
            imported(store, source)
