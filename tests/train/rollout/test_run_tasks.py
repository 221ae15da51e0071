"""`ltrain rollout` as a user types it: finished, killed and continued, and misused."""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.fork_server import forked, kill, ltrain_command
from tests.model_files import write_model_files

from ltrain_collector.store import Store
from ltrain_train.rollout.runs import open_run

HERE = Path(__file__).parent


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    rows = [{"id": str(number), "input": f"question {number}"} for number in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def environ(outside: Any, home: Path) -> dict[str, str]:
    disabled = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai"}
    return {**os.environ, **disabled, "LTRAIN_GATEWAY": outside.url}


def ltrain(
    arguments: Sequence[object], environ: dict[str, str], **more: Any
) -> subprocess.CompletedProcess[str]:
    command = [ltrain_command(), "rollout", *map(str, arguments)]
    return subprocess.run(
        command, env=environ, cwd=HERE / "agents", capture_output=True, text=True, **more
    )


DISPATCHED = "SELECT count() AS spans FROM otel.spans WHERE SpanName = 'ltrain.rollout.dispatch'"
AGENT = ("--agent", "plain:solve", "--reward", "scores:one")


def test_a_finished_run_is_followed_by_the_next(
    tasks: Path, environ: dict[str, str], outside: Any, home: Path
) -> None:
    first = ltrain([tasks, *AGENT, "--rollouts-per-task", "2"], environ)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines() == ["run tasks: 8 ok", "mean reward: 1.000"]
    second = ltrain([tasks, *AGENT, "--json"], environ)
    output = json.loads(second.stdout)
    assert (output["run"], output["skipped"], len(output["rollouts"])) == ("tasks-2", 0, 4)
    assert output["rollouts"][0].keys() >= {"rollout", "attempt", "outcome", "rewards", "seconds"}
    assert len(outside.wait_spans(12, name="ltrain.rollout")) == 12
    assert json.loads((home / "runs" / "tasks-2" / "run.json").read_text())["finished"] is True


def test_a_killed_run_continues_where_it_stopped(
    tasks: Path, environ: dict[str, str], outside: Any, home: Path
) -> None:
    outside.pause = 0.7
    arguments = [tasks, *AGENT, "--rollouts-per-task", "2", "--workers", "1", "--concurrency", "1"]
    command = [ltrain_command(), "rollout", *map(str, arguments)]
    killed = subprocess.Popen(command, env=environ, cwd=HERE / "agents")
    outside.wait_spans(2, 30, name="ltrain.rollout")
    kill(killed)
    killed.wait()
    assert not _remaining_workers(home)
    done = {span.attributes["ltrain.rollout.id"] for span in outside.spans(name="ltrain.rollout")}
    outside.pause = 0.0
    again = ltrain([*arguments, "--json"], environ)
    output = json.loads(again.stdout)
    assert (output["run"], again.returncode) == ("tasks", 0)
    assert len(done) <= output["skipped"] < 8
    assert output["skipped"] + len(output["rollouts"]) == 8
    assert 2 in {rollout["attempt"] for rollout in output["rollouts"]}, "the one that was cut off"
    closed = [span.attributes for span in outside.wait_spans(8, name="ltrain.rollout")]
    assert len({span["ltrain.rollout.id"] for span in closed}) == 8
    executions = [(span["ltrain.rollout.id"], span["ltrain.attempt.id"]) for span in closed]
    assert len(executions) == len(set(executions))


def test_a_continued_run_counts_the_errors_of_the_earlier_process(
    tmp_path: Path, environ: dict[str, str], home: Path
) -> None:
    path = tmp_path / "tasks.jsonl"
    rows = [{"id": str(n), "input": "x", "raises": n == 0} for n in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [path, "--agent", "plain:solve", "--agent-sees", "raises", "--agent-sees", "input"]
    assert ltrain(arguments, environ).returncode == 1
    run = home / "runs" / "tasks"
    (run / "run.json").write_text((run / "run.json").read_text().replace("true", "false"))
    *others, last = (run / "attempts.jsonl").read_text().splitlines()
    while '"ok"' not in last:  # the runner was killed before it ended this one
        others.insert(0, last)
        last = others.pop()
    (run / "attempts.jsonl").write_text("".join(f"{line}\n" for line in others))
    again = ltrain(arguments, environ)
    assert again.stdout.splitlines()[:2] == ["run tasks: 1 ok", "finished before: 1 error, 1 ok"]
    assert again.returncode == 1


def test_a_damaged_line_of_the_attempt_log_is_named_once(
    tasks: Path, environ: dict[str, str], home: Path
) -> None:
    assert ltrain([tasks, *AGENT], environ).returncode == 0
    run = home / "runs" / "tasks"
    (run / "run.json").write_text((run / "run.json").read_text().replace("true", "false"))
    first, *others = (run / "attempts.jsonl").read_bytes().splitlines(keepends=True)
    (run / "attempts.jsonl").write_bytes(b"".join([first.replace(b"rollout", b"rolled_"), *others]))
    again = ltrain([tasks, *AGENT], environ)
    assert again.returncode == 0
    assert again.stderr.count("line 1 of") == again.stderr.count("is damaged and ignored") == 1


def test_an_unfinished_run_of_an_earlier_ltrain_continues(tmp_path: Path) -> None:
    run = open_run(tmp_path, "mine", {"agent": "a:b"})
    run.save()
    file = run.folder / "run.json"
    file.write_text(file.read_text().replace('"options"', '"asked"'))
    assert open_run(tmp_path, "mine", {"agent": "a:b"}) == run
    assert open_run(tmp_path, "mine", {"agent": "other:b"}).name == "mine-2"


def test_a_second_command_on_the_same_run_is_refused(
    tasks: Path, environ: dict[str, str], outside: Any
) -> None:
    outside.pause = 60.0
    command = [ltrain_command(), "rollout", str(tasks), *AGENT]
    with subprocess.Popen(
        command, env=environ, cwd=HERE / "agents", stderr=subprocess.DEVNULL
    ) as first:
        try:
            assert outside.wait_spans(1, 60, name="ltrain.rollout.dispatch")
            second = ltrain([tasks, *AGENT], environ)
            output = " ".join(second.stderr.replace("│", "").split())
            assert second.returncode == 1
            assert f"is in use by process {forked(first.pid)}" in output
            assert "Traceback" not in output
        finally:
            first.terminate()
            outside.pause = 0.0
            first.wait(60)
    executions = [
        (span.attributes["ltrain.rollout.id"], span.attributes["ltrain.attempt.id"])
        for span in outside.spans(name="ltrain.rollout.dispatch")
    ]
    assert len(executions) == len(set(executions))


def test_a_run_of_another_machine_is_not_dispatched_again(
    tasks: Path, served: Any, outside: Any, tmp_path: Path
) -> None:
    outside.pause = 60.0
    shared = (served.home / "store.secret").read_text()
    secret = {"LTRAIN_GATEWAY": outside.url, "LTRAIN_STORE_SECRET": shared}
    environ = {**os.environ, **secret}
    command = [ltrain_command(), "rollout", str(tasks), *AGENT]
    with subprocess.Popen(
        command, env=environ, cwd=HERE / "agents", stderr=subprocess.DEVNULL
    ) as first:
        try:
            with Store.open(served.dsn) as store:
                until = time.monotonic() + 60
                while store.query(DISPATCHED)["spans"].item() < 4:
                    assert first.poll() is None and time.monotonic() < until
                    time.sleep(0.1)
            elsewhere = {**environ, "LTRAIN_HOME": str(tmp_path / "elsewhere")}
            second = ltrain([tasks, *AGENT], elsewhere)
            output = " ".join(second.stderr.replace("│", "").split())
            assert second.returncode == 1, output
            assert "Another runner has 4 open attempts of the run 'tasks'" in output
            assert "with --run" in output and "Traceback" not in output
            trained = _run(tasks, elsewhere, tmp_path)
            assert (trained.returncode, trained.stdout) == (1, ""), trained.stderr
            training_output = " ".join(trained.stderr.split())
            assert "Another runner has 4 open attempts of the run 'tasks'" in training_output
            assert "otherwise with source.run in the recipe" in training_output
            assert "Traceback" not in training_output
            named = ltrain([tasks, *AGENT, "--timeout", "0.5", "--run", "other"], elsewhere)
            assert named.stdout.startswith("run other: 4 "), named
        finally:
            first.terminate()
            outside.pause = 0.0
            first.wait(60)


def _run(tasks: Path, environ: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `ltrain run` with the name of the tasks' run."""
    (folder / "ltrain.toml").write_text(
        f'''
        source.run = "{tasks.stem}"
        rollout = {{ tasks = "{tasks.name}", agent = "echo", reward = "true" }}
        policy = [{{ name = "p" }}]
        reward = [{{ name = "answer", evaluation = "reward" }}]
        '''
    )
    model = write_model_files(folder / "model", {"w": (4,)})
    return subprocess.run(
        [ltrain_command(), "run", "--model", str(model)],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
    )


def test_a_command_after_two_dashes_is_the_agent(
    tasks: Path, environ: dict[str, str], outside: Any
) -> None:
    done = ltrain([tasks, "--mode", "val", "--run", "mine", "--", "echo", "it's fine"], environ)
    first, warning = done.stdout.splitlines()
    assert (done.returncode, first) == (0, "run mine: 4 ok")
    assert warning.startswith("warning: 4 of 4 ok rollouts never called the model")


@pytest.mark.parametrize("agent", ["function", "command"])
def test_rollouts_that_failed_are_an_error_with_the_commonest_reason(
    tmp_path: Path, environ: dict[str, str], home: Path, agent: str
) -> None:
    path = tmp_path / "tasks.jsonl"
    rows: list[dict[str, Any]] = [{"id": str(n), "input": "x", "raises": n > 0} for n in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments: list[object] = [path, "--agent", "plain:solve", "--agent-sees", "raises"]
    arguments += ["--agent-sees", "input"]
    if agent == "command":
        arguments = [path, "--", "python", "absent.py"]
    done = ltrain(arguments, environ)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    last = done.stdout.splitlines()[-1]
    logs = home / "logs" / "rollouts"
    if agent == "function":
        beginning = "3 of 4 rollouts failed, all as error: ValueError: the agent gave up."
        assert last.endswith(f". Log: {logs / 'worker-1.log'}") or "worker-2.log" in last
    else:
        beginning = "4 of 4 rollouts failed, all as error: the command ended with status 2: "
        assert Path(last.partition("Log: ")[2]).read_text().strip().endswith("directory")
    assert last.startswith(beginning)
    assert " Example: rollout " in last


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        ([], 2, "Name the agent exactly once"),
        (["--agent", "plain:solve", "--", "echo"], 2, "Name the agent exactly once"),
        (["--agent", "plain:sovle"], 1, "Did you mean 'plain:solve'"),
        (
            ["--agent", "plain:solve", "--reward", "scores"],
            1,
            "not a URL, not module:function and no program",
        ),
        (["--agent", "plain:solve", "--gateway", "http://127.0.0.1:9"], 1, "No gateway answers"),
    ],
)
def test_misuse_prints_one_sentence(
    tasks: Path, environ: dict[str, str], arguments: list[str], status: int, sentence: str
) -> None:
    failed = ltrain([tasks, *arguments], environ)
    assert failed.returncode == status
    assert sentence in " ".join(failed.stderr.replace("│", "").split())
    assert "Traceback" not in failed.stderr


def _remaining_workers(home: Path) -> list[str]:
    """Return what still runs for this home a few seconds after its owner died."""
    until = time.monotonic() + 10
    while (workers := list(_workers(home))) and time.monotonic() < until:
        time.sleep(0.05)
    return workers


def _workers(home: Path) -> Iterator[str]:
    for process in psutil.process_iter(["cmdline", "environ"]):
        line = " ".join(process.info["cmdline"] or ())
        if (process.info["environ"] or {}).get("LTRAIN_HOME") == str(home) and "worker" in line:
            yield line


SANDBOX = ("--sandbox", "bubblewrap", "--workspace")


def test_a_command_runs_in_a_sandbox(tasks: Path, environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "code.txt").write_text("in the workspace")
    command = ["sh", "-c", f'cat "$LTRAIN_WORKSPACE/code.txt"; ls {tmp_path}']
    sandboxed = [tasks, *SANDBOX, tmp_path / "work", "--", *command]
    refused = ltrain(sandboxed, environ)
    assert (refused.returncode, refused.stdout.splitlines()[0]) == (1, "run tasks: 4 error")
    assert f"cannot access '{tmp_path}'" in refused.stdout
    visible = [tasks, *SANDBOX, tmp_path / "work", "--visible", tasks.parent, "--", *command]
    assert ltrain(visible, environ).stdout.splitlines()[0] == "run tasks-2: 4 ok"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((*SANDBOX, "none/{id}", "--", "true"), "none/0, which is not a folder"),
        ((*SANDBOX, "none/{gold}", "--", "true"), "{gold}, and the agent sees the keys id, domain"),
        (("--workspace", "work", "--", "true"), "`workspace` needs a sandbox"),
        (("--sandbox", "jail", "--", "true"), "Input should be 'bubblewrap'"),
        ((*AGENT, "--sandbox", "bubblewrap"), "none of them can have a sandbox"),
    ],
)
def test_a_sandbox_that_cannot_be_is_refused(
    tasks: Path, environ: dict[str, str], options: Sequence[str], sentence: str
) -> None:
    done = ltrain([tasks, *options], environ)
    assert done.returncode in (1, 2)
    assert sentence in " ".join(done.stderr.replace("│", "").split())
