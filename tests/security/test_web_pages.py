"""A web page cannot read, write or delete anything; a real Chromium tries."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.fake_vllm import FakeVllm
from tests.http_requests import ask, health, post
from tests.security.servers import Up, collector, gateway

PROMPT = "the launch code is 7319"
PAGE = Path(__file__).with_name("page.html")
WAIT = 120.0

LOCAL_CHECKS = (
    "LocalNetworkAccessChecks,LocalNetworkAccessChecksWebSockets,"
    "BlockInsecurePrivateNetworkRequests,PrivateNetworkAccessSendPreflights,"
    "PrivateNetworkAccessRespectPreflightResults,PrivateNetworkAccessForNavigations,"
    "PrivateNetworkAccessForWorkers,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable"
)
"""Features of Chromium that keep some pages from this machine: other browsers lack them."""


@dataclass
class Attacker:
    """A web server on another port of this machine, with a page that attacks the first one."""

    requests: list[str] = field(default_factory=list)
    """Requested paths."""
    report: dict[str, Any] = field(default_factory=dict)
    """What the page could read."""
    done: threading.Event = field(default_factory=threading.Event)


def _handler(attacker: Attacker, victim: int = 0) -> type[BaseHTTPRequestHandler]:
    """Serve the page, and forward all else to port `victim`, as a rebound name would."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            attacker.requests.append(self.path)
            url = urlsplit(self.path)
            if url.path == "/page.html":
                self._answer(200, PAGE.read_bytes(), "text/html")
            elif url.path == "/redirect":
                self._answer(307, b"", "text/plain", parse_qs(url.query)["to"][0])
            elif victim:
                self._send_on()
            else:
                self._answer(200, b"1\n", "text/plain")

        def do_POST(self) -> None:
            if self.path != "/report":
                self._send_on()
                return
            body = self.rfile.read(int(self.headers["content-length"]))
            attacker.report = json.loads(body)
            self._answer(200, b"", "text/plain")
            attacker.done.set()

        def _send_on(self) -> None:
            """Forward the browser's bytes to 127.0.0.1, and return the response."""
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            connection = HTTPConnection("127.0.0.1", victim, timeout=WAIT)
            connection.putrequest(self.command, self.path, skip_host=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            self._answer(answer.status, answer.read(), "text/plain")
            connection.close()

        def _answer(self, status: int, body: bytes, kind: str, to: str = "") -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            if to:
                self.send_header("location", to)
            self.end_headers()
            self.wfile.write(body)

    return Handler


@contextmanager
def served(attacker: Attacker, host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Serve the attacker's page; on a victim's own port, of another address, it is that name."""
    server = ThreadingHTTPServer((host, port), _handler(attacker, port))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def browser(url: str, profile: Path) -> Iterator[None]:
    """Open `url` in a Chromium whose checks of local networks are off."""
    with _log(profile) as log:
        process = subprocess.Popen([*_chromium(profile), url], stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(WAIT)


@contextmanager
def _log(profile: Path) -> Iterator[Any]:
    profile.mkdir(parents=True)
    with (profile / "log").open("wb") as file:
        yield file


def _chromium(profile: Path) -> list[str]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.fail("Chromium is not installed: install it with `apt-get install chromium`.")
    return [
        *(found, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-popup-blocking", "--disable-dev-shm-usage", "--no-proxy-server"),
        *("--disable-background-networking", "--disable-component-update"),
        f"--user-data-dir={profile}",
        f"--disable-features={LOCAL_CHECKS}",
        "--host-resolver-rules=MAP rebound.test 127.0.0.2",
    ]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A store without keys that contains a prompt; no test can change it."""
    with collector(tmp_path_factory.mktemp("up") / "home") as running:
        request = ExportTraceServiceRequest()
        span = request.resource_spans.add().scope_spans.add().spans.add(name="chat")
        span.trace_id, span.span_id = bytes(15) + b"\1", bytes(7) + b"\1"
        span.start_time_unix_nano = 1_790_000_000_000_000_000
        span.attributes.add(key="gen_ai.prompt").value.string_value = PROMPT
        assert post(running.otlp, request.SerializeToString()).status == 200
        yield running


def state(up: Up) -> tuple[str, str]:
    """Return everything that a page could have changed: all tables and the stored spans."""
    tables = "SELECT database, name FROM system.tables WHERE NOT is_temporary ORDER BY ALL"
    spans = "SELECT SpanName, SpanAttributes FROM otel.otel_traces ORDER BY ALL"
    return up.run(tables).text, up.run(spans).text


def test_a_page_reads_writes_and_drops_nothing(up: Up, tmp_path: Path) -> None:
    before, counted, attacker = state(up), up.blocked(), Attacker()
    assert PROMPT in before[1] and "otel_logs" in before[0]
    with served(attacker) as port:
        url = f"http://127.0.0.1:{port}/page.html?sql={up.sql}&otlp={up.otlp}&here={port}"
        with browser(url, tmp_path / "profile"):
            assert attacker.done.wait(WAIT), (tmp_path / "profile" / "log").read_text()[-2000:]
    assert attacker.report["stolen"] == []
    assert attacker.report["tries"] > 60
    assert PROMPT not in json.dumps(attacker.report)
    assert not [path for path in attacker.requests if path.startswith("/fetched")]
    assert state(up) == before
    blocked = {reason: count - counted[reason] for reason, count in up.blocked().items()}
    assert blocked["fetch_site"] > 20, attacker.report
    assert blocked["origin"] > 20, attacker.report
    assert blocked["denied"] == 0, "a request of the page came through to the store"


def test_a_page_of_a_rebound_name_reads_nothing(up: Up, tmp_path: Path) -> None:
    before, counted, attacker = state(up), up.blocked(), Attacker()
    with served(attacker, "127.0.0.2", up.sql):
        where = f"sql={up.sql}&otlp={up.sql}&here={up.sql}&host=rebound.test"
        url = f"http://rebound.test:{up.sql}/page.html?{where}"
        with browser(url, tmp_path / "profile"):
            assert attacker.done.wait(WAIT), (tmp_path / "profile" / "log").read_text()[-2000:]
    assert attacker.report["stolen"] == []
    assert PROMPT not in json.dumps(attacker.report)
    assert state(up) == before
    assert up.blocked()["host"] - counted["host"] > 5, attacker.report


def test_a_page_makes_no_call_at_the_gateway(tmp_path: Path) -> None:
    attacker = Attacker()
    with FakeVllm() as vllm, gateway(tmp_path / "home", vllm.url) as victim:
        with served(attacker) as port:
            url = f"http://127.0.0.1:{port}/page.html?sql={victim}&otlp={victim}&here={port}"
            with browser(url, tmp_path / "profile"):
                assert attacker.done.wait(WAIT), (tmp_path / "profile" / "log").read_text()[-2000:]
        blocked = health(victim)["blocked"]
    assert attacker.report["stolen"] == []
    assert blocked["fetch_site"] > 20 and blocked["origin"] > 20, attacker.report
    assert vllm.requests == []


def test_a_user_may_look_by_the_address_bar(up: Up, tmp_path: Path) -> None:
    url = (
        f"http://127.0.0.1:{up.sql}/?query=SELECT+%27%3Cscript%3Edocument.title%3D1%3C/script%3E%27"
    )
    done = subprocess.run(
        [*_chromium(tmp_path / "profile"), "--dump-dom", url],
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    assert "&lt;script&gt;" in done.stdout, done.stderr[-2000:]


EVIL = "http://evil.example"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Origin": EVIL}, "origin"),
        ({"Origin": "null"}, "origin"),
        ({"Origin": "http://127.0.0.1"}, "origin"),
        ({"Sec-Fetch-Site": "cross-site"}, "fetch_site"),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, "fetch_site"),
        ({"Sec-Fetch-Dest": "script"}, "fetch_site"),
        ({"Host": "evil.example"}, "host"),
        ({"Host": "localhost.evil.example:8123"}, "host"),
        ({"Host": "127.0.0.1.nip.io"}, "host"),
        ({"Host": "localhost."}, "host"),
        ({"Host": "[::1"}, "host"),
    ],
)
def test_every_path_of_every_port_refuses(up: Up, headers: dict[str, str], reason: str) -> None:
    before = up.blocked()[reason]
    paths = {
        up.sql: ("/", "/ping", "/replicas_status", "/play", "/?query=SELECT+1"),
        up.otlp: ("/", "/health", "/metrics", "/v1/traces", "/nothing"),
    }
    for port, all_paths in paths.items():
        for path in all_paths:
            for method in ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE"):
                answer = ask(port, method, path, b"SELECT 1", headers)
                assert answer.status == 403, (method, path)
                assert method == "HEAD" or "refused" in answer.text
    assert up.blocked()[reason] == before + 60


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost"},
        {"Host": "LOCALHOST:1"},
        {"Host": "[::1]:8123"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "script"},
        {"Sec-Fetch-Mode": "cors"},  # Node's own fetch
    ],
)
def test_programs_are_served(up: Up, headers: dict[str, str]) -> None:
    assert ask(up.sql, "GET", "/?query=SELECT+1", headers=headers).text == "1\n"
    assert ask(up.otlp, "GET", "/health", headers=headers).status == 200


def test_listed_names_are_served(tmp_path: Path) -> None:
    with collector(tmp_path / "home", "--allow-host", "store.example") as up:
        assert ask(up.sql, "GET", "/ping", headers={"Host": "Store.Example:99"}).status == 200
        assert ask(up.sql, "GET", "/ping", headers={"Host": "other.example"}).status == 403


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
@pytest.mark.parametrize(
    "setting",
    [
        "readonly=0",
        "readonly=0&session_id=s",
        "readonly=2&session_id=held",
        "session_id=held",
    ],
)
def test_only_a_post_changes_anything(up: Up, method: str, setting: str) -> None:
    before, owner = state(up), up.owner
    mine = "CREATE TEMPORARY TABLE mine (a Int8)"
    assert ask(up.sql, "POST", "/?session_id=held", mine, owner).status in (200, 500)
    for sql in (
        "DROP+TABLE+otel.otel_logs",
        "CREATE+TABLE+otel.page+(a+Int8)+ENGINE=Memory",
        "CREATE+TABLE+otel.page+(a+Int8)+ENGINE=Memory+SETTINGS+readonly=0",
        "INSERT+INTO+otel.otel_trace_executions+VALUES+('a','b','c','d')",
        "INSERT+INTO+otel.otel_trace_executions+FORMAT+TSV%0Aa",
        "INSERT+INTO+otel.otel_trace_executions+SELECT+'a','b','c','d'+SETTINGS+readonly=0",
        "SET+readonly=0",
        "TRUNCATE+TABLE+otel.otel_traces",
        "SYSTEM+DROP+MARK+CACHE",
    ):
        answer = ask(up.sql, method, f"/?{setting}&query={sql}", headers=owner)
        if not sql.startswith("SET"):
            assert answer.status >= 400, (sql, answer.text)
    assert state(up) == before
    assert ask(up.sql, "GET", f"/?{setting}&query=SELECT+1", headers=owner).text == "1\n"
