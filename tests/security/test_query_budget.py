"""Queries have limits, keys take turns, and a stopping server ends queries."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests import http_requests
from tests.fork_server import ltrain_command
from tests.security.keyed import Keyed, spans, start

from ltrain_collector.errors import QueryFailed
from ltrain_collector.query import RoleLimits
from ltrain_collector.query.limits import READER_PARALLEL, READER_THREADS
from ltrain_collector.query.statement import INSERT
from ltrain_collector.store import READING_STATEMENT, Store
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.settings import QUERY_LIMITS

ENDLESS = (
    "SELECT count() FROM system.numbers WHERE sipHash64(number) = 1",
    "SELECT count() FROM system.numbers AS a, otel.spans AS b, otel.spans AS c "
    "WHERE sipHash64(a.number, b.SpanId, c.SpanId) = 1",
    "SELECT count() FROM system.numbers AS a, numbers(10000) AS b WHERE a.number + b.number = 1",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count() FROM r "
    "SETTINGS max_recursive_cte_evaluation_depth = 1000000000",
    "SELECT number % 100000 AS n, count() FROM system.numbers GROUP BY n",
    "EXPLAIN SELECT (SELECT sum(sipHash64(number)) FROM system.numbers)",
)
UNINTERRUPTIBLE = (
    "SELECT editDistance(repeat('ab', 32000), repeat('ba', 32000 - number % 2)) FROM numbers(50)"
)
BOMBS = (
    "SELECT count() FROM (SELECT arrayJoin(range(500000000)) AS x)",
    "SELECT arrayMap(x -> repeat('abc', 900000), range(100000)) FROM numbers(10)",
    "SELECT groupArray(number) FROM system.numbers",
    "SELECT count() FROM numbers(100000000) "
    "WHERE match(repeat(toString(number), 10000), '(a+)+(b|c)*(.*)*z$')",
    "SELECT repeat('\\0', 1000000) FROM numbers(100000) FORMAT JSON",
    "SELECT repeat('\\0', 1000000) FROM numbers(100000) FORMAT JSONEachRow "
    "SETTINGS output_format_json_array_of_rows = 1, max_block_size = 1",
    "FROM (SELECT repeat('\\0', 1000000) AS a FROM numbers(100000)) SELECT a "
    "SETTINGS max_block_size = 1 FORMAT Arrow",
)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """A server with a limit of seconds for readers' queries and of five queued queries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "LTRAIN_QUERY_LIMITS", "seconds=3,memory=512,rows=5000000000,queued=5,parallel=1"
        )
        opened = start(tmp_path_factory.mktemp("budget") / "store")
    yield opened
    assert opened.up.stop(signal.SIGTERM) == 0


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Keyed]:
    """A server with the default limits."""
    opened = start(tmp_path / "store")
    yield opened
    if opened.up.process.poll() is None:
        opened.up.stop(signal.SIGKILL)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sql", ENDLESS)
def test_an_endless_query_ends_and_says_how_to_raise_its_limit(keyed: Keyed, sql: str) -> None:
    answer = keyed.ask("one", sql)
    assert answer.headers["X-ClickHouse-Exception-Code"] in ("159", "158")
    assert "raise the limit with LTRAIN_QUERY_LIMITS=" in answer.text
    assert keyed.refused().keys() & {"seconds", "rows"}


def test_rows_are_limited(keyed: Keyed) -> None:
    answer = keyed.ask("one", "SELECT count() FROM system.numbers", max_execution_time="0")
    assert answer.headers["X-ClickHouse-Exception-Code"] in ("158", "159")
    rows = keyed.ask("one", "SELECT count() FROM numbers(1000)", max_rows_to_read="10")
    assert rows.headers["X-ClickHouse-Exception-Code"] == "158"


@pytest.mark.parametrize("sql", BOMBS)
def test_a_bomb_takes_no_memory(keyed: Keyed, sql: str) -> None:
    answer = keyed.ask("one", sql)
    status = Path(f"/proc/{keyed.up.pid}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) >> 10
    assert answer.headers["X-ClickHouse-Exception-Code"] in ("241", "396", "159", "131", "128")
    assert peak < 2500, f"{peak} MiB"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 SETTINGS max_execution_time = 0",
        "SELECT 1 SETTINGS max_execution_time = 100",
        "SELECT 1 SETTINGS max_execution_time = -1",
        "SELECT 1 SETTINGS max_execution_time = DEFAULT",
        "SELECT * FROM (SELECT 1 SETTINGS max_execution_time = 100)",
        "SELECT 1 SETTINGS max_rows_to_read = 1e12",
        "SELECT 1 SETTINGS max_threads = 999",
        "SELECT 1 SETTINGS max_threads = 'auto'",
        "SELECT 1 SETTINGS max_final_threads = 999",
        "SELECT 1 SETTINGS max_temporary_data_on_disk_size_for_query = 0",
        "SELECT 1 SETTINGS max_result_bytes = 100000000000",
        "SELECT 1 SETTINGS max_parser_backtracks = 0",
        "SELECT 1 SETTINGS use_query_cache = 1",
        "SELECT 1 SETTINGS additional_table_filters = {}",
        "SET max_execution_time = 100",
    ],
)
def test_a_query_does_not_raise_its_own_limits(keyed: Keyed, sql: str) -> None:
    answer = keyed.ask("one", sql, session_id="raise")
    assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) in (
        (403, "452"),
        (403, "497"),
    )


def test_limits_of_the_url_are_lowered_not_raised(keyed: Keyed) -> None:
    sql = "SELECT getSetting('max_execution_time'), getSetting('max_threads')"
    own = f"\t{READER_THREADS}\n"
    assert keyed.ask("one", sql, max_execution_time="60", max_threads="999").text == f"3{own}"
    assert keyed.ask("one", sql, max_execution_time="0").text == f"3{own}"
    assert keyed.ask("one", sql, max_execution_time="2").text == f"2{own}"
    assert keyed.ask("one", "SET max_execution_time = 1", session_id="low").status == 200
    assert keyed.ask("one", sql, session_id="low").text == f"1{own}"


def test_an_admin_may_raise_them(keyed: Keyed) -> None:
    sql = "SELECT getSetting('max_execution_time')"
    assert keyed.ask("admin", sql).text == "3600\n"
    assert keyed.ask("admin", f"{sql} SETTINGS max_execution_time = 7200").text == "7200\n"
    assert keyed.ask("admin", sql, max_execution_time="7200").text == "7200\n"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "(" * 200_000 + "1" + ")" * 200_000,
        "SELECT 1 IN (" + "1," * 500_000 + "1)",
        "SELECT " + "(" * 900 + "1" + ")" * 900,
        "SELECT 1" + "::Int" * 900,
        "SELECT " + "(a.b(c(d[" * 20_000,
        "SELECT " + "case when " * 25_000,
        "SELECT 1" + "+1" * 100_000,
        "/**/" * 60_000 + "SHOW TABLES",
        "INSERT INTO t SETTINGS " + " " * 250_000,
    ],
    ids=range(9),
)
def test_sql_that_is_hard_to_read_stops_nobody(keyed: Keyed, sql: str) -> None:
    answers: list[http_requests.Answer] = []
    thread = threading.Thread(target=lambda: answers.append(keyed.ask("one", sql)))
    thread.start()
    while thread.is_alive():
        assert http_requests.ask(keyed.up.sql, "GET", "/ping", timeout=20).status == 200
        time.sleep(0.05)
    assert answers[0].status in (200, 400, 403, 500)
    assert "Traceback" not in answers[0].text


def test_comments_are_matched_without_backtracking() -> None:
    began = time.process_time()
    assert READING_STATEMENT.match("/**/" * 50_000 + "SHOW") is None
    assert READING_STATEMENT.match("/* a */ -- b\n /**/ ((SELECT 1))")
    assert INSERT.match(b"INSERT INTO t SETTINGS " + b" " * 100_000) is None
    assert time.process_time() - began < 5


def test_another_key_gets_results_despite_endless_queries(patient: Keyed) -> None:
    held = [patient.begin("one", sql) for sql in ENDLESS]
    patient.reaches("system.numbers", 1 + READER_PARALLEL)  # and the question
    for _ in range(5):
        assert patient.ask("two", "SELECT 1").text == "1\n"
    headers = {"Authorization": f"Bearer {patient.keys['ingest']}"}
    assert http_requests.post(patient.up.otlp, spans(1), **headers).status == 200
    for connection in held:
        connection.close()
    patient.reaches("system.numbers", 1)
    assert patient.ask("one", "SELECT 1").text == "1\n"


@pytest.mark.nightly
def test_ingest_goes_before_queries_that_hold_all_memory(patient: Keyed) -> None:
    """Three queries, each within its limit, hold 3.9 of the engine's 4 GiB.

    An insert waits five seconds for a query to end; then the sender sends the same again.
    """
    sql = (
        "SELECT max(length(x) + h) FROM (SELECT sum(sipHash64(number)) % 2 AS h "
        "FROM numbers(9000000000)) AS b CROSS JOIN (SELECT arrayMap(i -> i, range({})) AS x) AS a"
    )
    sizes = {"one": 499_000_000, "two": 498_000_000, "three": 40_000_000}
    headers = {
        "Authorization": f"Bearer {patient.keys['ingest']}",
        "Content-Type": "application/x-protobuf",
    }
    with ThreadPoolExecutor(len(sizes)) as pool:
        queries = [pool.submit(patient.ask, key, sql.format(n)) for key, n in sizes.items()]
        number, until = 2, time.monotonic() + 300
        while not any(each.done() for each in queries):
            assert time.monotonic() < until
            body, path = wide_spans(number), "/v1/traces"
            answer = http_requests.ask(patient.up.otlp, "POST", path, body, headers, timeout=60)
            assert answer.status == 200 or "memory" in answer.text, answer.text
            number += answer.status == 200
        ended = next(each.result() for each in queries if each.done())
        assert number > 2
        patient.up.stop(signal.SIGKILL)
    assert ended.headers["X-ClickHouse-Exception-Code"] in ("394", "241")
    assert "This is the limit of all queries together" in ended.text


def test_a_key_may_have_only_so_many_waiting(keyed: Keyed) -> None:
    held = [keyed.begin("one", ENDLESS[0])]
    keyed.reaches("sipHash64(number) = 1", 2)
    held += [keyed.begin("one", ENDLESS[0]) for _ in range(12)]
    answers = [connection.getresponse() for connection in held]
    statuses = [answer.status for answer in answers]
    assert statuses.count(429) == 7
    refused = answers[statuses.index(429)]
    assert "raise the limit with LTRAIN_QUERY_LIMITS=queued=10" in refused.read().decode()
    assert refused.headers["Retry-After"]
    assert keyed.refused()["waiting"] == 7
    for connection in held:
        connection.close()


def test_a_client_that_disconnects_leaves_the_queue(patient: Keyed) -> None:
    waiting = [patient.begin("one", f"{sql} -- left") for sql in ENDLESS[:1] * 8]
    patient.reaches("-- left", 1 + READER_PARALLEL)
    for connection in waiting[1:]:
        connection.close()  # in the queue, whatever their order
    assert waiting[0].sock is not None
    waiting[0].close()
    patient.reaches("-- left", 1)
    assert patient.ask("one", "SELECT 1").text == "1\n"


def test_who_does_not_read_the_answer_is_cut_off(keyed: Keyed) -> None:
    sql = "SELECT number, repeat('x', 1000) FROM numbers(4000000000)"
    connection = keyed.begin("one", f"{sql} -- unread")
    keyed.reaches("-- unread", 2)
    keyed.reaches("-- unread", 1)
    assert keyed.ask("one", "SELECT 1").text == "1\n"
    connection.close()


def test_an_admin_is_cut_off_for_not_reading_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_ADMIN_LIMITS", "seconds=2")
    opened = start(tmp_path / "store")
    sql = "SELECT number, repeat('x', 1000) FROM numbers(4000000000) -- unread"
    connection = opened.begin("admin", sql)
    opened.reaches("-- unread", 2)
    opened.reaches("-- unread", 1)
    connection.close()
    opened.up.stop(signal.SIGKILL)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sql", [ENDLESS[0], UNINTERRUPTIBLE])
def test_sigterm_ends_the_server_while_queries_run(patient: Keyed, sql: str) -> None:
    held = [patient.begin("one", f"{sql} -- stops") for _ in range(6)]
    held.append(patient.begin("admin", f"{sql} -- stops"))
    patient.reaches("-- stops", 2 + READER_PARALLEL)
    ended, acknowledged = threading.Event(), list[int]()
    headers = {"Authorization": f"Bearer {patient.keys['ingest']}"}

    def send() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            try:
                if http_requests.post(patient.up.otlp, spans(number), **headers).status == 200:
                    acknowledged.append(number)
            except OSError:
                return

    thread = threading.Thread(target=send)
    thread.start()
    while not acknowledged:
        time.sleep(0.05)
    began = time.monotonic()
    assert patient.up.stop(signal.SIGTERM) == 0
    assert time.monotonic() - began < 15  # 9 s are what the server takes itself
    ended.set()
    thread.join()
    for connection in held:
        connection.close()
    with Store.open(f"chdb://{patient.up.directory}") as store:
        found = set(store.query("SELECT SpanName FROM otel.spans")["SpanName"])
    assert {f"n{number}" for number in acknowledged} <= found


def test_the_statements_of_a_session_are_limited(keyed: Keyed) -> None:
    long = "SET log_comment = '" + "x" * 200_000 + "'"
    answers = [keyed.ask("one", long, session_id="long") for _ in range(3)]
    assert [answer.status for answer in answers][-1] == 500
    assert "session" in answers[-1].text


def test_a_bad_limit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("seconds=soon", "second=3", "3", "rows=-1"):
        monkeypatch.setenv("LTRAIN_QUERY_LIMITS", text)
        with pytest.raises(BadSetting, match=r"^LTRAIN_QUERY_LIMITS: .* is not a limit"):
            QUERY_LIMITS.read()


def test_a_bad_limit_is_reported_before_the_store_is_opened(tmp_path: Path) -> None:
    done = subprocess.run(
        [ltrain_command(), "up", "--dir", str(tmp_path / "store")],
        env={**os.environ, "LTRAIN_ADMIN_LIMITS": "secnds=5"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "LTRAIN_ADMIN_LIMITS: 'secnds=5'" in done.stderr
    assert not (tmp_path / "store").exists()


def test_the_memory_of_all_queries_is_not_raised_with_that_of_one() -> None:
    limits = RoleLimits.from_environment().reader
    text = "Code: 241. DB::Exception: {}memory limit exceeded: would use 4.01 GiB"
    of_all = str(limits.explain(QueryFailed(text.format("(total) "), 241)))
    assert "raise" not in of_all
    assert "LTRAIN_QUERY_LIMITS=parallel=1,memory=512" in of_all
    of_one = str(limits.explain(QueryFailed(text.format("Query "), 241)))
    assert "raise the limit with LTRAIN_QUERY_LIMITS=memory=4096" in of_one


def wide_spans(number: int) -> bytes:
    """Return a request of 12 MB."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for at in range(1, 4001):
        span = scope.spans.add(name="wide", start_time_unix_nano=1_790_000_000_000_000_000)
        span.trace_id, span.span_id = number.to_bytes(16, "big"), at.to_bytes(8, "big")
        span.attributes.add(key="text").value.string_value = os.urandom(1500).hex()
    return bytes(request.SerializeToString())
