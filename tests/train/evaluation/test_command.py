"""`ltrain eval` as a user types it, with a fake program in place of vLLM."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.fork_server import kill
from tests.train.gateway.conftest import write_adapter

from ltrain_train.gateway import GatewayClient
from ltrain_train.store import home_secret

AGENT = ("--agent", "plain:solve", "--reward", "scores:matches", "--agent-sees", "input")
WAITING = ("--agent", "waiting:solve", *AGENT[2:], "--agent-sees", "waits_for")
WAIT = 120.0
VERSIONS_SQL = (
    "SELECT Mode AS mode, Wave AS wave, toString(PolicyVersion) AS version, count() AS calls "
    "FROM otel.spans WHERE RunId = 'eval-held-out' AND PolicyName != '' GROUP BY ALL ORDER BY wave"
)


JUDGED = """
[rollout]
tasks = "held-out.jsonl"
validation = "held-out.jsonl"
agent = "plain:uses_service"

[[policy]]
name = "policy"

[[reward]]
use = "judge"
name = "quality"
params = {{ model = "m" }}

[[serve.route]]
model = "m"
url = "{url}/v1"
key = "JUDGE_KEY"

[[service]]
name = "db"
command = "exec python program.py"
count = 2
"""
PROGRAM = """
import http.server, json, os

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        content = json.dumps({"db": 1}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

with open("environs", "a") as file:
    file.write(json.dumps(dict(os.environ)) + "\\n")
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
server.serve_forever()
"""


def versions(*numbers: object) -> list[str]:
    return [text for number in numbers for text in ("--policy", f"policy@{number}")]


def test_versions_are_compared_on_the_same_tasks(project: Any) -> None:
    more = ("--agent-sees", "raises", "--json", "--fail-under", "0.3")
    done = project.ltrain("eval", "held-out.jsonl", *versions(0, 1, 2), *AGENT, *more)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert (result["run"], result["metric"], result["tasks"]) == ("eval-held-out", "reward", 5)
    first, second, third = result["versions"]
    assert second["scores"] == {"both": 1, "crash": 0, "first": 0, "second": 1, "second-too": 1}
    assert (first["mean"], second["mean"], third["mean"]) == (0.4, 0.6, 0.2)
    assert (first["difference"], second["outcomes"]) == (None, {"error": 1, "ok": 4})
    assert second["difference"]["mean"] == pytest.approx(0.2)
    low, high = second["difference"]["interval"]
    assert low < 0 < high
    assert result["passed"] is False and len(result["faults"]) == 2
    assert (
        "ltrain: The difference of policy@1 from policy@0 is below --fail-under 0.3: its mean is "
        "0.200.\n"
    ) in done.stderr
    assert project.policies.current("policy") == 0
    assert not _processes(project)
    shown = project.ltrain("show", "eval-held-out", "--store", _store(project))
    assert shown.returncode == 0, shown.stderr
    text = " ".join(shown.stdout.split())
    assert [f"val {wave} policy@{wave}" in text for wave in range(3)] == [True] * 3, text
    rows = json.loads(project.ltrain("sql", VERSIONS_SQL, "--store", _store(project),
                                     "--format", "json").stdout)  # fmt: skip
    assert [(row["mode"], row["version"], int(row["calls"])) for row in rows] == [
        ("val", "0", 5),
        ("val", "1", 5),
        ("val", "2", 5),
    ]


@pytest.mark.nightly
def test_the_table_names_what_changed_and_the_next_command(project: Any) -> None:
    project.policies.promote("policy", 1)
    with _gateway(project) as gateway:  # of production: the evaluation leaves it alone
        done = project.ltrain("eval", "held-out.jsonl", *versions(0), "--policy", "policy", *AGENT)
        assert gateway.current_version("policy") == 1
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "reward: mean over 5 tasks, temperature 0"
    assert lines[1] == "version tasks rollouts failed mean 95 % difference 95 %"
    assert lines[2] == "policy@0 5 5 0 0.600 [0.200, 1.000]"
    assert lines[3].startswith("policy@1 5 5 0 0.800 [0.400, 1.000] +0.200 [")
    assert lines[4:6] == [
        "policy@1 - policy@0: 2 better, 1 worse, 2 equal",
        "changed most: first -1.000, second +1.000, second-too +1.000",
    ]
    assert lines[6].startswith("With 5 tasks the intervals are too narrow;")
    assert lines[7] == "Next: ltrain show eval-held-out"
    assert lines[8].startswith("ltrain show ")
    assert "policy@1: 5 of 5 rollouts in " in done.stderr
    assert project.policies.current("policy") == 1


@pytest.mark.nightly
def test_samples_and_a_command_as_the_agent(project: Any) -> None:
    project.write_tasks([{"id": "a", "input": "w7", "gold": "w7"}])
    options = (*versions(0), "--samples", "2", "--temperature", "1", "--reward", "scores:words")
    done = project.ltrain("eval", "held-out.jsonl", *options, "--", "echo", "two words")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "reward: mean over 1 task, 2 rollouts each, temperature 1"
    assert lines[2:4] == [
        "policy@0 1 2 0 2.000 -",
        "policy@0: no interval: 1 task with a score",
    ]


def test_an_agent_that_always_fails_is_an_error_with_the_reason(project: Any) -> None:
    project.write_tasks([{"id": "a", "input": "w7", "raises": True}])
    options = (*versions(0, 1), *AGENT, "--agent-sees", "raises")
    done = project.ltrain("eval", "held-out.jsonl", *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert "No rollout of any version was ok. 1 of 1 rollouts failed" in done.stderr
    assert "ValueError: the agent gave up" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_several_numbers_need_a_metric_before_the_second_version_runs(project: Any) -> None:
    options = (*versions(0, 1), "--agent", "plain:solve", "--reward", "scores:several")
    done = project.ltrain("eval", "held-out.jsonl", *options)
    assert done.returncode == 1
    assert "several numbers: answer, style. Choose one with --metric" in done.stderr
    assert "policy@1: " not in done.stderr
    chosen = project.ltrain("eval", "held-out.jsonl", *options[2:], "--metric", "style", "--json")
    assert json.loads(chosen.stdout)["versions"][0]["mean"] == 2.0
    assert json.loads(chosen.stdout)["run"] == "eval-held-out-2"


@pytest.mark.nightly
def test_versions_of_two_policies_are_served_one_after_the_other(
    project: Any, tmp_path: Path
) -> None:
    project.policies.register("twin", tmp_path / "model")
    options = ("--policy", "policy@1", "--policy", "twin@0", "--policy", "policy@0", *AGENT)
    done = project.ltrain("eval", "held-out.jsonl", *options, "--json")
    assert done.returncode == 0, done.stderr
    versions = json.loads(done.stdout)["versions"]
    assert [(each["version"], each["wave"], each["mean"]) for each in versions] == [
        ("policy@1", 0, 0.8),
        ("twin@0", 1, 0.6),
        ("policy@0", 2, 0.6),
    ]
    assert not _processes(project)


@pytest.mark.nightly
def test_an_adapter_is_compared_with_its_base(project: Any, tmp_path: Path) -> None:
    version = project.policies.add("policy", write_adapter(tmp_path / "adapter"), parent=0)
    options = ("--policy", "policy@0", "--policy", f"policy@{version}", *AGENT)
    done = project.ltrain("eval", "held-out.jsonl", *options, "--json")
    assert done.returncode == 0, done.stderr
    evaluated = json.loads(done.stdout)["versions"]
    assert [each["version"] for each in evaluated] == ["policy@0", f"policy@{version}"]
    assert project.policies.current("policy") == 0


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)]
)
def test_a_stopped_evaluation_leaves_the_current_version_and_no_process(
    project: Any, number: signal.Signals
) -> None:
    project.write_tasks(_waiting_tasks("absent"))
    with _evaluating(project, 1) as process:
        pruned = project.ltrain("policy", "prune", "policy", "--keep", "1", "--yes")
        assert pruned.returncode == 1
        assert f"policy policy of {project.home} is in use by process" in pruned.stderr
        kill(process, number)
        _, errors = process.communicate(timeout=WAIT)
    _until(lambda: not _processes(project))
    assert process.returncode != 0
    assert project.policies.current("policy") == 0
    assert project.policies.versions("policy") == [0, 1, 2]
    if number is signal.SIGINT:
        assert "ltrain: stopping; the next evaluation begins anew." in errors
        assert (
            "ltrain: stopped. Evaluated so far: policy@1: 1 of 3 rollouts. They are run "
            "'eval-held-out' in the store."
        ) in errors
        assert "Traceback" not in errors


@pytest.mark.nightly
def test_the_services_and_the_judge_of_the_recipe_are_used(project: Any, outside: Any) -> None:
    outside.rules.append(('"result"', '{"evidence": "it is there", "score": 0.25}'))
    project.environ["JUDGE_KEY"] = "k3y"
    (project.folder / "ltrain.toml").write_text(JUDGED.format(url=outside.url))
    (project.folder / "program.py").write_text(PROGRAM)
    done = project.ltrain("eval", *versions(0), "--json")
    assert done.returncode == 0, done.stderr
    [version] = json.loads(done.stdout)["versions"]
    assert (version["mean"], version["outcomes"]) == (0.25, {"ok": 5})
    assert {call.path for call in outside.calls} == {"/v1/chat/completions"}
    assert {call.headers["authorization"] for call in outside.calls} == {"Bearer k3y"}
    environs = [
        json.loads(line) for line in (project.folder / "environs").read_text().split("\n")[:-1]
    ]
    assert len(environs) == 2
    assert not any("JUDGE_KEY" in environ or "LTRAIN_STORE" in environ for environ in environs)
    assert not _processes(project)


@pytest.mark.nightly
def test_a_service_that_cannot_start_ends_the_evaluation_with_its_log(project: Any) -> None:
    project.environ["JUDGE_KEY"] = "k3y"
    text = JUDGED.format(url="http://127.0.0.1:9").replace("exec python", "no-such-program")
    (project.folder / "ltrain.toml").write_text(text)
    done = project.ltrain("eval", *versions(0), "--json")
    assert done.returncode == 1
    assert "no-such-program: not found" in done.stderr
    assert "Traceback" not in done.stderr
    assert not _processes(project)


def test_calls_that_another_version_answered_are_an_error(project: Any) -> None:
    """A gateway that is started again serves the current version."""
    killed = project.folder / "killed"
    project.write_tasks(_waiting_tasks(str(killed)))
    with _evaluating(project, 1) as process:
        serve = ["-m", "ltrain", "serve"]
        [gateway] = [each for each in _processes(project) if each.cmdline()[1:4] == serve]
        gateway.kill()
        gateway.wait(WAIT)
        killed.touch()
        _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 1, errors
    assert "policy@0 answered calls of the evaluation of policy@1, because the gateway" in errors


def test_a_policy_server_of_another_gateway_is_refused(project: Any) -> None:
    (project.folder / "ltrain.toml").write_text(
        '[[policy]]\nname = "policy"\n[[reward]]\nname = "r"\nevaluation = "reward"\n'
        '[serve]\nupstream = "http://127.0.0.1:9"\n'
    )
    with _gateway(project):
        done = project.ltrain("eval", "held-out.jsonl", *versions(0), *AGENT)
    assert done.returncode == 1
    assert "serve.upstream = 'http://127.0.0.1:9', and the gateway at " in done.stderr


@contextmanager
def _evaluating(project: Any, version: int) -> Iterator[subprocess.Popen[str]]:
    """Evaluate until one rollout has ended."""
    command = project.command("eval", "held-out.jsonl", *versions(version), *WAITING)
    log = project.home / "runs" / "eval-held-out" / "attempts.jsonl"
    with subprocess.Popen(
        command,
        env=project.environ,
        cwd=project.folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            _until(lambda: process.poll() is not None or _has_ended_one(log))
            yield process
        finally:
            process.kill()


def _has_ended_one(log: Path) -> bool:
    return log.exists() and '"ok"' in log.read_text()


def _waiting_tasks(file: str) -> list[dict[str, str]]:
    """Return three tasks, of which two end when the file exists."""
    task = {"input": "w7", "gold": "w7"}
    return [{"id": "0", **task}, *({"id": each, **task, "waits_for": file} for each in "12")]


@contextmanager
def _gateway(project: Any) -> Iterator[GatewayClient]:
    """Serve the policy at LTRAIN_GATEWAY, as production does."""
    url = project.environ["LTRAIN_GATEWAY"]
    command = project.command("serve", "--policy", "policy", "--port", url.rpartition(":")[2])
    process = subprocess.Popen(command, env=project.environ, stdout=subprocess.DEVNULL)
    client = GatewayClient(url, home_secret(project.home))
    try:
        _until(client.is_ready)
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(WAIT)


def _store(project: Any) -> str:
    return f"chdb://{project.home / 'store'}"


def _processes(project: Any) -> list[psutil.Process]:
    """Return the processes of the project's home."""
    home, found = str(project.home), []
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("LTRAIN_HOME") == home:
            found.append(process)
    return found


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
