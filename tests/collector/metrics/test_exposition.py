"""`/metrics` of a real `ltrain up`, read by Prometheus' own parser and compared with the docs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.http_requests import ask, post
from tests.own_metrics import values

from ltrain_collector.access import Keys, Role
from ltrain_collector.store import Store

DOCS = Path(__file__).parents[3] / "docs"


def samples(port: int, key: str = "") -> dict[tuple[str, ...], float]:
    """Return each value by name and label values."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = ask(port, "GET", "/metrics", headers=headers)
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return values(sample for family in families for sample in family.samples)


def refused(port: int, path: str = "/metrics", **headers: str) -> int:
    return ask(port, "GET", path, headers=headers).status


def test_what_was_done_is_measured(
    start: Callable[..., Any], request_of: Callable[..., bytes], tmp_path: Path
) -> None:
    up = start(tmp_path / "store")
    twice = request_of((1, 1), (1, 2))
    sent = [("traces", twice), ("traces", twice), ("traces", request_of((1, 3), start=0))]
    sent += [("logs", b"\xff"), ("metrics", b"")]
    statuses = [post(up.otlp, body, f"/v1/{signal}").status for signal, body in sent]
    assert statuses == [200, 200, 200, 400, 200]
    with Store.open(up.dsn) as store:
        assert store.query("SELECT count() AS n FROM otel.spans")["n"].item() == 2
        before = samples(up.otlp)["query_seconds_count",]
        assert store.query("SELECT 1 AS n")["n"].item() == 1
        assert refused(up.sql, "/?query=SELECT+nothing") == 404
    found = samples(up.otlp)
    traces = "otel.otel_traces"
    expected: dict[tuple[str, ...], float] = {
        ("requests_total", "traces"): 3,
        ("requests_total", "logs"): 0,
        ("accepted_total", "traces"): 4,
        ("doubled_total", "traces"): 2,
        ("rejected_total", "traces"): 1,
        ("refused_total", "malformed", "logs"): 1,
        ("lag_seconds_count", "traces"): 3,
        ("lag_seconds_bucket", "+Inf", "traces"): 3,
        ("inserts_total", traces): 2,
        ("insert_failures_total", traces): 0,
        ("inserted_rows_total", traces): 4,
        ("rows_per_insert_bucket", "1.0", traces): 0,
        ("rows_per_insert_bucket", "8.0", traces): 2,
        ("rows_per_insert_sum", traces): 4,
        ("waiting_bytes",): 0,
        ("query_seconds_count",): before + 2,
        ("query_errors_total",): 1,
        ("queries_running",): 0,
        ("missed_rounds_total",): 0,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found["store_rows", traces] in (2, 4)
    assert found["store_bytes", traces] > 0
    assert 0 < found["disk_free_bytes",] < found["disk_size_bytes",]
    assert found["resident_bytes",] > 100 << 20
    assert found["cpu_seconds_total",] > 0.1
    assert ask(up.sql, "GET", "/metrics")[:2] == (200, b"Ok.\n")


def test_who_may_read_it(start: Callable[..., Any], tmp_path: Path) -> None:
    keys = Keys(tmp_path / "store")
    made = {role: keys.make_key(role)[0] for role in Role}
    up = start(tmp_path / "store")
    for role in (Role.QUERY, Role.ADMIN):
        assert samples(up.otlp, made[role])["requests_total", "traces"] == 0
    assert refused(up.otlp, Authorization=f"Bearer {made[Role.INGEST]}") == 403
    assert refused(up.otlp) == 401


def test_a_page_in_a_browser_may_not(up: Any) -> None:
    assert refused(up.otlp, Origin="http://evil.example") == 403


def test_every_metric_is_in_the_docs(
    start: Callable[..., Any], request_of: Callable[..., bytes], tmp_path: Path
) -> None:
    up = start(tmp_path / "store", 0, 0, "--forward", "http://127.0.0.1:9")
    assert post(up.otlp, request_of((1, 1))).status == 200
    assert post(up.otlp, b"\xff").status == 400
    # a function that reaches the network is denied
    assert refused(up.sql, "/?query=SELECT+*+FROM+url('http://127.0.0.1')") == 403
    rows = re.findall(
        r"^\| `(ltrain_collector_\w+)` \| (\w+) \| (.*?) \| (.+) \|$",
        (DOCS / "collector.md").read_text(),
        re.MULTILINE,
    )
    page = ask(up.otlp, "GET", "/metrics").text
    families = list(text_string_to_metric_families(page))
    assert sorted(rows) == sorted(
        (_name(each), each.type, _labels(each), each.documentation) for each in families
    )


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> str:
    names = {name: None for sample in family.samples for name in sample.labels if name != "le"}
    return ", ".join(f"`{name}`" for name in sorted(names, reverse=True))
