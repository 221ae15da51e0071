"""The service of docs/feedback.md as it is printed, from its traffic to a new served version."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.end_to_end.conftest import WAIT, Project, wait_ready
from tests.http_requests import ask

from ltrain_train.processes import free_port

PAGE = Path(__file__).parents[2] / "docs" / "feedback.md"
FILES = re.compile(r"^```\w+\n(# (\S+)\n.*?)^```", re.DOTALL | re.MULTILINE)
JSON = {"Content-Type": "application/json"}
REQUESTS = 16


def start(stack: ExitStack, made: Project, *command: str, **environ: str) -> None:
    """Start a process that ends with `stack`."""
    process = stack.enter_context(
        subprocess.Popen(command, cwd=made.folder, env={**made.environ, **environ})
    )
    stack.callback(process.terminate)


def ltrain(made: Project, *arguments: str) -> str:
    done = subprocess.run(
        made.command(*arguments),
        cwd=made.folder,
        env=made.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(made: Project, sql: str) -> list[dict[str, Any]]:
    parsed: list[dict[str, Any]] = json.loads(ltrain(made, "sql", sql, "--json"))
    return parsed


def wait_for(made: Project, sql: str, expected: int) -> None:
    end = time.monotonic() + WAIT
    while (count := int(rows(made, sql)[0]["n"])) != expected:
        assert time.monotonic() < end, f"{sql} is {count}, not {expected}"
        time.sleep(0.5)


def answers_when_up(port: int, path: str, body: dict[str, Any]) -> Any:
    """Post to a service that may still be starting."""
    end = time.monotonic() + WAIT
    while True:
        try:
            answer = ask(port, "POST", path, json.dumps(body), JSON, timeout=WAIT)
        except ConnectionRefusedError:
            assert time.monotonic() < end, f"no service answers on port {port}"
            time.sleep(0.2)
        else:
            assert answer.status == 200, answer.text
            return answer.json


def test_a_service_learns_from_feedback_that_comes_later(
    project: Callable[[str], Project],
) -> None:
    made = project("feedback")
    for text, name in FILES.findall(PAGE.read_text()):
        (made.folder / name).write_text(text)
    # vLLM 0.32 ends at the first bfloat16 call of the tiny model on a CPU with AMX
    with (made.folder / "ltrain.toml").open("a") as recipe:
        recipe.write('[train]\ndtype = "fp32"\n')
    otlp, store, gateway = (
        urlsplit(made.environ[name]).port or 0
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "LTRAIN_STORE", "LTRAIN_GATEWAY")
    )
    service = free_port()
    launcher = str(Path(sys.executable).with_name("opentelemetry-instrument"))
    openai = {
        "OPENAI_BASE_URL": f"http://127.0.0.1:{gateway}/v1",
        "OPENAI_API_KEY": "none",
        "OPENAI_MODEL": "support",
    }
    with ExitStack() as stack:
        ports = ("--otlp-port", str(otlp), "--grpc-port", "0", "--http-port", str(store))
        start(stack, made, *made.command("up", *ports))
        options = ("--policy", "support", "--port", str(gateway), "--dtype", "float32")
        start(stack, made, *made.command("serve", "tiny", *options))
        wait_ready(made.environ["LTRAIN_GATEWAY"])
        uvicorn = (sys.executable, "-m", "uvicorn", "service:app", "--port", str(service))
        start(stack, made, launcher, *uvicorn, **openai)
        answers = [
            answers_when_up(service, "/ask", {"session": f"s{number // 2}", "text": f"w{number}"})
            for number in range(REQUESTS)
        ]
        ids = [answer["answer"] for answer in answers]
        # one answer has no feedback, one is judged by a program, one by a person
        for number, trace in enumerate(ids[:-3]):
            answers_when_up(service, "/thumb", {"answer": trace, "up": number % 2 == 0})
        late = {"trace": ids[-3], "name": "thumbs", "value": 1, "id": "click-1"}
        for _ in range(2):
            assert ask(otlp, "POST", "/v1/feedback", json.dumps(late), JSON).status == 200
        thumbs = "SELECT count() AS n FROM otel.evaluations WHERE name = 'thumbs'"
        calls = "SELECT count() AS n FROM otel.spans WHERE SpanName = 'invoke_agent support'"
        wait_for(made, thumbs, REQUESTS - 2)
        wait_for(made, calls, REQUESTS)
        ltrain(made, "reward", f"trace:{ids[-2][:16]}", "0", "--name", "thumbs")
        assert json.loads(ltrain(made, "traces", "--json"))["totals"]["units"] == REQUESTS
        planned = json.loads(ltrain(made, "run", "--once", "--dry-run", "--json"))
        trained = json.loads(ltrain(made, "run", "--once", "--json"))
        # the requests with thumbs are traces without a call to train on
        assert planned["executions"]["trained"] == REQUESTS - 1
        assert planned["groups_of_one"] == planned["groups"]
        assert planned["computed_tokens"] == trained["metrics"]["computed_tokens"]
        assert (trained["version"], trained["served"]) == (1, True)
        answers_when_up(service, "/ask", {"session": "new", "text": "w1"})
        wait_for(made, calls, REQUESTS + 1)
        served = rows(
            made,
            "SELECT PolicyVersion AS version, count() AS n FROM otel.spans "
            "WHERE ScopeName = 'ltrain.gateway' AND GenAiOp = 'chat' "
            "GROUP BY version ORDER BY version",
        )
        assert [(int(row["version"]), int(row["n"])) for row in served] == [(0, REQUESTS), (1, 1)]
