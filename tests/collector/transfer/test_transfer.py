"""Exported rows can be imported again; unreadable records are counted with their places."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from polars.testing import assert_frame_equal
from tests.otlp import insert_otlp
from tests.property_examples import examples
from typer.testing import CliRunner

from ltrain.cli import app
from ltrain_collector.errors import BadRequest, NothingToExport
from ltrain_collector.store import Store
from ltrain_collector.transfer.commands import FORMATS, export_requests
from ltrain_collector.transfer.importing import ImportCounts, import_files, list_files

FIXTURES = Path(__file__).parents[2] / "fixtures"
NOON = 1_790_000_000_000_000_000
ROWS = "SELECT * EXCEPT IngestedAt FROM otel.spans ORDER BY TraceId, SpanId, Timestamp"


def imported(store: Store, *paths: Path, trusted: bool = False) -> ImportCounts:
    return import_files(store, list(paths), lambda path: None, trusted)


def exported(store: Store, form: str, where: str = "true") -> bytes:
    return b"".join(FORMATS[form](request) for request in export_requests(store, where, {}))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
string_maps = st.dictionaries(texts, texts, max_size=3)
times = st.integers(NOON - 10**18, NOON)
spans = st.fixed_dictionaries(
    {
        "name": texts,
        "trace_state": texts,
        "kind": st.integers(0, 5),
        "start": times,
        "took": st.integers(0, 10**12),
        "parent": st.sampled_from([b"", b"12345678"]),
        "status": st.tuples(st.integers(0, 2), texts),
        "attributes": string_maps,
        "resource": string_maps,
        "scope": st.tuples(texts, texts),
        "events": st.lists(st.tuples(times, texts, string_maps), max_size=2),
        "links": st.lists(st.tuples(texts, string_maps), max_size=2),
    }
)


def fill(into: Any, pairs: dict[str, str]) -> None:
    for key, value in pairs.items():
        into.add(key=key).value.string_value = value


def request_of_spans(made: list[dict[str, Any]]) -> bytes:
    request = ExportTraceServiceRequest()
    for number, each in enumerate(made, 1):
        resource = request.resource_spans.add()
        fill(resource.resource.attributes, each["resource"])
        scoped = resource.scope_spans.add()
        scoped.scope.name, scoped.scope.version = each["scope"]
        span = scoped.spans.add(name=each["name"], kind=each["kind"])
        span.trace_id, span.span_id = b"t" * 16, number.to_bytes(8, "big")
        span.parent_span_id, span.trace_state = each["parent"], each["trace_state"]
        span.start_time_unix_nano = each["start"]
        span.end_time_unix_nano = each["start"] + each["took"]
        span.status.code, span.status.message = each["status"]
        fill(span.attributes, each["attributes"])
        for at, name, pairs in each["events"]:
            fill(span.events.add(time_unix_nano=at, name=name).attributes, pairs)
        for state, pairs in each["links"]:
            link = span.links.add(trace_state=state, trace_id=b"l" * 16, span_id=b"l" * 8)
            fill(link.attributes, pairs)
    return bytes(request.SerializeToString())


@settings(
    max_examples=examples(25, change=8), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(made=st.lists(spans, min_size=1, max_size=5), form=st.sampled_from(sorted(FORMATS)))
def test_import_of_an_export_is_the_same_rows(
    folder: Store, tmp_path: Path, made: list[dict[str, Any]], form: str
) -> None:
    folder.command("TRUNCATE TABLE otel.otel_traces")  # of the example before
    assert insert_otlp(folder, request_of_spans(made)).count == len(made)
    before = folder.query(ROWS)
    (tmp_path / "out").write_bytes(exported(folder, form))
    folder.command("TRUNCATE TABLE otel.otel_traces")
    for _ in range(2):
        assert imported(folder, tmp_path / "out", trusted=True).stored == len(made)
    assert_frame_equal(folder.query(ROWS), before)


def test_every_fixture_is_imported_and_exported(folder: Store, tmp_path: Path) -> None:
    files = [
        path for path in list_files(FIXTURES) if "logs" not in path.name and ".sql" not in path.name
    ]
    counts = imported(folder, *files)
    assert (counts.records, counts.stored, counts.unreadable) == (957, 957, 0)
    before = folder.query(ROWS)
    assert before.height == 957
    for form in FORMATS:
        (tmp_path / form).write_bytes(exported(folder, form))
        folder.command("TRUNCATE TABLE otel.otel_traces")
        assert imported(folder, tmp_path / form).stored == 957
        assert_frame_equal(folder.query(ROWS), before)


LIGHTNING = {
    "rollout_id": "ro-1",
    "attempt_id": "at-0",
    "sequence_id": 7,
    "trace_id": "0" * 31 + "1",
    "span_id": "0" * 15 + "2",
    "parent_id": "0" * 15 + "3",
    "name": "agentlightning.annotation",
    "status": {"status_code": "ERROR", "description": "why"},
    "attributes": {"agentlightning.reward.0.value": 0.5, "n": 3, "l": [1, 2], "b": True},
    "events": [{"name": "e", "attributes": {"k": "v"}, "timestamp": 1790000000.5}],
    "links": [{"context": {"trace_id": "1" * 32, "span_id": "2" * 16}, "attributes": None}],
    "start_time": 1790000000.25,
    "end_time": 1790000001.75,
    "context": None,
    "parent": None,
    "resource": {"attributes": {"service.name": "agl"}, "schema_url": ""},
}


def test_spans_that_agent_lightning_dumps(folder: Store, tmp_path: Path) -> None:
    for name, content in (("list", [LIGHTNING]), ("line", LIGHTNING)):
        (tmp_path / name).write_text(json.dumps(content))
    counts = imported(folder, tmp_path / "list", tmp_path / "line")
    assert (counts.records, counts.stored, counts.unreadable) == (2, 2, 0)
    [row] = folder.query(ROWS).to_dicts()
    assert row["Timestamp"].timestamp() == 1790000000.25
    expected = {
        "SpanId": "0" * 15 + "2",
        "ParentSpanId": "0" * 15 + "3",
        "RolloutId": "ro-1",
        "Attempt": "at-0",
        "SpanName": "agentlightning.annotation",
        "ServiceName": "agl",
        "Duration": 1_500_000_000,
        "StatusCode": "Error",
        "StatusMessage": "why",
        "Events.Name": ["e"],
        "Links.SpanId": ["2" * 16],
    }
    assert expected.items() <= row.items()
    (kept,) = folder.query("SELECT SpanAttributes AS a FROM otel.spans")["a"].to_list()
    pairs = dict(kept) if not isinstance(kept, dict) else kept
    assert pairs == {"agentlightning.reward.0.value": "0.5", "n": "3", "l": "[1,2]", "b": "true"}


def test_what_is_not_stored_is_counted_with_its_reason_and_place(
    folder: Store, tmp_path: Path, request_of: Callable[..., bytes]
) -> None:
    insert_otlp(folder, request_of((1, 1)))
    whole = exported(folder, "json")
    wild = whole.replace(b'"0000000000000001"', b'"00"')
    odd = b'{"resourceSpans": 3}\n{"else": 1}\n{"rollout_id": 1, "span_id": 2, "sequence_id": 3}\n'
    (tmp_path / "f.json").write_bytes(whole + wild + odd + whole[:50])
    counts = imported(folder, tmp_path / "f.json")
    assert (counts.records, counts.stored, counts.unreadable) == (2, 1, 4)
    assert counts.rejected == {"trace_id must have 16 bytes and span_id 8, not all of them 0": 1}
    found = [place.split(": ")[0].removeprefix(f"{tmp_path}/f.json:") for place in counts.places]
    assert found == ["3", "4", "5", "6"]
    assert "resourceLogs, resourceMetrics, but else; `ltrain import --help`" in counts.places[1]


def test_the_commands(folder: Store, tmp_path: Path) -> None:
    def ltrain(*argv: str) -> Any:
        return CliRunner().invoke(app, [*argv, "--store", folder.name])

    logs = FIXTURES / "reward__otel-and-openinference.logs.otlp.json"
    source = tmp_path / "in"
    source.mkdir()
    (source / ".hidden").write_text("not read")
    (source / "a.json").write_bytes((FIXTURES / "mcp__builtin-2.3.0.otlp.json").read_bytes())
    done = ltrain("import", str(source), "--json")
    assert done.exit_code == 0
    count = json.loads(done.stdout)["stored"]
    assert count == folder.query("SELECT count() AS n FROM otel.spans")["n"].item() > 0
    (source / "b.txt").write_text("hello there")
    done = ltrain("import", str(source))
    assert done.exit_code == 1
    assert "b.txt, byte 0: it is neither OTLP in JSON nor protobuf" in done.stdout
    for name in ("x.json.gz", "x.json.zst"):
        out = tmp_path / name
        assert ltrain("export", str(out)).exit_code == 0
        assert imported(folder, out).stored == count
    folder.command(
        "INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId) VALUES (now(), 'mine', 'odd')"
    )
    assert "Not exported: 1 span; their ids" in ltrain("export", str(out)).output
    assert imported(folder, out).stored == count
    assert "Choose from: json, proto" in str(ltrain("export", "--format", "xml").exception)
    assert isinstance(ltrain("import", str(tmp_path / "none")).exception, BadRequest)
    assert logs.exists()


def test_an_import_counts_what_is_new(folder: Store, tmp_path: Path) -> None:
    def output(*argv: str) -> Any:
        done = CliRunner().invoke(app, ["import", str(source), "--store", folder.name, *argv])
        assert done.exit_code == 0
        return done.stdout

    source = tmp_path / "in"
    source.mkdir()
    paths = [path for path in list_files(FIXTURES) if ".sql" not in path.name]
    logs = next(path for path in paths if "logs" in path.name)
    (source / "a.json").write_bytes((FIXTURES / "mcp__builtin-2.3.0.otlp.json").read_bytes())
    first = output()
    [sentence] = first.splitlines()[-1:]
    spans = folder.query("SELECT count() AS n FROM otel.spans").item()
    assert sentence == f"{spans} of {spans} spans are new."
    assert output().splitlines()[-1] == f"0 of {spans} spans are new; {spans} were stored already."
    (source / "b.json").write_bytes(logs.read_bytes())
    counts = imported(folder, source / "a.json", source / "b.json")
    records = folder.query("SELECT count() AS n FROM otel.logs").item()
    assert counts.new_rows == {"spans": 0, "log records": records}
    assert json.loads(output("--json"))["new"] == {"spans": 0, "log records": 0}
    tables = folder.query("SELECT name FROM system.tables WHERE startsWith(name, 'import_')")
    assert tables.height == 0


def test_new_spans_are_those_of_the_file_while_others_arrive(
    folder: Store, tmp_path: Path, request_of: Callable[..., bytes]
) -> None:
    """Rows that another sender stores meanwhile change no count."""
    requests = [request_of((trace, 1)) for trace in range(1, 5)]
    for number, body in enumerate(requests[:3]):
        path = tmp_path / f"{number}.pb"
        path.write_bytes(len(body).to_bytes(4, "big") + body)

    def store_another(progress: Any) -> None:
        insert_otlp(folder, request_of((100 + int(progress.path.stem), 1)))

    paths = [tmp_path / f"{number}.pb" for number in (0, 1, 2)]
    imported(folder, paths[0])
    counts = import_files(folder, paths, store_another)
    assert (counts.stored, counts.new_rows) == (3, {"spans": 2})


def test_a_record_repeated_in_a_file_is_new_once(
    folder: Store, tmp_path: Path, request_of: Callable[..., bytes]
) -> None:
    body = request_of((1, 1))
    (tmp_path / "x.pb").write_bytes((len(body).to_bytes(4, "big") + body) * 2)
    counts = imported(folder, tmp_path / "x.pb")
    assert (counts.stored, counts.new_rows) == (2, {"spans": 1})


def test_an_export_of_nothing_fails_and_names_what_is_there(
    folder: Store, tmp_path: Path, request_of: Callable[..., bytes]
) -> None:
    def failure(*argv: str) -> str:
        done = CliRunner().invoke(app, ["export", *argv, "--store", folder.name])
        assert (done.exit_code, done.stdout) == (1, "")
        assert isinstance(done.exception, NothingToExport)
        return str(done.exception)

    out = tmp_path / "out.jsonl"
    assert f"no spans. {folder.name} holds nothing." in failure(str(out))
    for _ in range(2):  # a store holds a record once, however often it was sent
        insert_otlp(
            folder, request_of((1, 1), ltrain__rollout__id="a", ltrain__run__id="first run")
        )
    message = failure(str(out), "--run", "my run", "--where", "Wave = 3")
    assert message.startswith("There are no spans with --run 'my run' --where 'Wave = 3'. ")
    assert "holds 1 span; runs of its spans: first run. Change --signal, --run," in message
    assert "no log records. " in failure(str(out), "--signal", "logs")
    assert "no data points. " in failure(str(out), "--signal", "metrics")
    assert not out.exists()
    out.write_text("kept")
    failure(str(out), "--rollout", "b")
    assert out.read_text() == "kept"
    folder.command("TRUNCATE TABLE otel.otel_traces")
    folder.command(
        "INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId) VALUES (now(), 'mine', 'odd')"
    )
    assert "holds 1 span, but their ids are not 32 and 16" in failure()


def test_a_rollout_stays_together(folder: Store, request_of: Callable[..., bytes]) -> None:
    insert_otlp(folder, request_of((1, 1), ltrain__rollout__id="a", ltrain__run__id="r"))
    insert_otlp(folder, request_of((2, 1), ltrain__rollout__id="b", ltrain__run__id="r"))
    insert_otlp(folder, request_of((1, 2), ltrain__rollout__id="a", ltrain__run__id="r"))
    (line,) = exported(folder, "json").splitlines()
    names = [
        span["traceId"][-1] + span["spanId"][-1]
        for scoped in json.loads(line)["resourceSpans"]
        for spans in scoped["scopeSpans"]
        for span in spans["spans"]
    ]
    assert names == ["11", "12", "21"]
    assert exported(folder, "json", "RolloutId = 'none'") == b""


def test_a_store_without_spans_exports_none(folder: Store) -> None:
    assert exported(folder, "proto") == b""
    assert isinstance(folder.query(ROWS), pl.DataFrame)


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_folder_without_files_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadRequest, match=r"(is empty|does not exist)\. Name a file of OTLP"):
        list_files(tmp_path / name)
