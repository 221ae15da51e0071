"""FastAPI: the calls of a served request are one trace, in its own spans or OpenTelemetry's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from tests.fork_server import ltrain_command
from tests.up import Up, running_up

if TYPE_CHECKING:
    from tests.frameworks.model import Model

ENVIRONMENT = "frameworks"
BIN = Path(__file__).parents[2] / f".venv-{ENVIRONMENT}" / "bin"
AGENTS = Path(__file__).parent / "agents"


@contextmanager
def served(up: Up, model: Model, home: Path, disabled: str) -> Iterator[str]:
    """Serve `agents/web_server.py` as a user does; yield its address."""
    if not (BIN / "uvicorn").exists():
        pytest.fail(f"{BIN.parent.name} is missing: make test-frameworks makes it")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LTRAIN_"))}
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": up.endpoint,
        "LTRAIN_HOME": str(home),
        "OPENAI_BASE_URL": model.url,
        "OPENAI_API_KEY": "none",
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": disabled,
    }
    launch = (BIN / "opentelemetry-instrument", BIN / "uvicorn", "web_server:app")
    with subprocess.Popen(
        (*launch, "--app-dir", AGENTS, "--port", "0"),
        env=inherited | variables,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        try:
            lines = iter(server.stderr.readline, "")
            yield next(found[0] for line in lines if (found := re.search(r"http://[\d.:]+", line)))
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
        finally:
            server.kill()


def read(url: str) -> str:
    with urlopen(url, timeout=60) as response:
        return str(response.read().decode())


def rows_of(up: Up, *command: str) -> Any:
    """Return the JSON that a command of ltrain prints."""
    done = subprocess.run(
        [ltrain_command(), *command],
        env={**os.environ, "LTRAIN_HOME": str(up.directory.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


ROOTS = "SELECT SpanName, ScopeName FROM otel.spans WHERE ParentSpanId = '' ORDER BY SpanName"


@pytest.mark.parametrize(
    ("disabled", "scope"), [("", "opentelemetry.instrumentation.fastapi"), ("fastapi", "fastapi")]
)
def test_the_calls_of_a_request_are_one_trace(
    model: Model, tmp_path: Path, disabled: str, scope: str
) -> None:
    home = tmp_path / "home"
    with running_up(home / "store") as up:
        with served(up, model, home, disabled) as address, ThreadPoolExecutor() as pool:
            routes = ["/thread", "/stream", "/thread"]
            answers = list(pool.map(read, [address + route for route in routes]))
        traces = rows_of(up, "traces", "--json")["traces"]
        roots = rows_of(up, "sql", ROOTS, "--format", "json")
    assert answers == ['["Done.","Done."]', "Done.Done.", '["Done.","Done."]']
    assert [(each["kind"], each["llm_calls"]) for each in traces] == [("trace", 2)] * 3
    assert [tuple(row.values()) for row in roots] == [
        ("GET /stream", scope),
        ("GET /thread", scope),
        ("GET /thread", scope),
    ]
