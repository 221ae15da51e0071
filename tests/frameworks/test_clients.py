"""Coding agents, unchanged and headless, behind a gateway: what the store has of their runs.

A scripted policy answers. The agent sends its model calls to `ltrain serve`, and its own telemetry,
if it has any, to `ltrain up`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from string import Template

import polars as pl
import pytest
from tests.fork_server import ltrain_command
from tests.frameworks.clients import (
    CLIENTS,
    DELEGATIONS,
    DONE,
    TASK,
    TITLE,
    Delegation,
    Session,
)
from tests.frameworks.completeness import check_clients
from tests.frameworks.model import Model, ReceivedRequest
from tests.up import Up, running_up, start_server

from ltrain_collector.store import Store
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans

ROOT = Path(__file__).parents[2]
PROGRAMS = {"clients": "node_modules/.bin", "pyclients": "bin"}
"""The folder of the programs in each environment."""
SECONDS = 120.0
"""Timeout of an agent; the slowest takes 18 of these seconds on two busy cores."""
ARRIVE_S = 30.0
"""Timeout of spans that arrive within two seconds."""
UNTIMED = [name for name, client in CLIENTS.items() if any(client.tools) and not client.timed]
QUICK = ("codex", "mini-swe-agent")
"""The agents that need less than ten seconds."""
EACH = [
    *QUICK,
    *(pytest.param(name, marks=pytest.mark.nightly) for name in CLIENTS if name not in QUICK),
]


Row = tuple[str, str, str, int]


@dataclass(frozen=True)
class Stack:
    """A collector, a gateway, and the scripted policy behind it."""

    up: Up
    gateway: str
    model: Model


@dataclass(frozen=True)
class Run:
    """One run of an agent in a folder of its own."""

    stack: Stack
    process: subprocess.Popen[str]
    work: Path
    since: str
    first_request: int

    @property
    def requests(self) -> list[ReceivedRequest]:
        """The requests of the agent to the policy."""
        return self.stack.model.model_requests[self.first_request :]

    def read(self) -> pl.DataFrame:
        """Return the calls of the run in their order."""
        source = Source.model_validate({"execution": "session"})
        with Store.open(self.stack.up.dsn) as store:
            spans, drops = read_spans(store, source, Selection(since=self.since))
        rows, unreadable = calls(spans)
        assert (drops.to_dicts(), unreadable.to_dicts()) == ([], [])
        return rows.sort("start", "call_id")

    def wait(self, has_arrived: Callable[[pl.DataFrame], bool]) -> pl.DataFrame:
        """Return the calls as soon as the condition holds, or after a while."""
        deadline = time.monotonic() + ARRIVE_S
        while not has_arrived(rows := self.read()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return rows


def sessions(rows: pl.DataFrame) -> list[list[Row]]:
    """Return the calls of each session."""
    return sorted(describe(each) for each in rows.partition_by("execution_id"))


def describe(rows: pl.DataFrame) -> list[Row]:
    """Return the kind, name, agent and state of each call, and the number of its requester."""
    models = rows.filter(kind="llm")["call_id"].to_list()
    return [
        (
            f"{row['kind']} {row['name']}",
            row["agent"],
            "cancelled" if row["error_type"] == "cancelled" else row["status"],
            models.index(row["requested_by"]) if row["requested_by"] else -1,
        )
        for row in rows.iter_rows(named=True)
    ]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home, model = tmp_path_factory.mktemp("stack"), Model()
    model.start()
    with running_up(home / "store") as up:
        environ = {
            **os.environ,
            "LTRAIN_HOME": str(home),
            "OTEL_EXPORTER_OTLP_ENDPOINT": up.endpoint,
        }
        serve = (ltrain_command(), "serve", "--port", "0", "--upstream", model.url)
        gateway, line = start_server(serve, environ, "ltrain: gateway ready at ")
        yield Stack(up, line.split()[4].removesuffix("/v1,"), model)
        gateway.terminate()
        gateway.wait()
    model.stop()


@contextmanager
def started(
    stack: Stack, name: str, folder: Path, *steps: str, without: tuple[str, ...] = ()
) -> Iterator[Run]:
    """Start an agent with a prompt whose plan has these steps, and end it.

    Args:
        without: arguments of the client that are left out.
    """
    client, home, work = CLIENTS[name], folder / "home", folder / "work"
    environment = ROOT / f".venv-{client.environment}"
    if not environment.exists():
        pytest.fail(f"{environment.name} is missing: make test-frameworks makes it")
    work.mkdir()
    values = {
        "gateway": stack.gateway,
        "collector": stack.up.endpoint,
        "home": str(home),
        "work": str(work),
    }
    for path, text in client.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(Template(text).substitute(values))
    variables = {key: Template(text).substitute(values) for key, text in client.variables.items()}
    prompt = Template(f"Do it. [[{'; '.join(steps)}]]").substitute(values)
    program, *arguments = (each for each in client.command if each not in without)
    since, first = datetime.now(UTC).isoformat(), len(stack.model.model_requests)
    process = subprocess.Popen(
        [environment / PROGRAMS[client.environment] / program, *arguments, prompt],
        env={"PATH": os.environ["PATH"], "HOME": str(home), **variables},
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Run(stack, process, work, since, first)
    finally:
        with suppress(ProcessLookupError):  # some start a second process
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_the_page_has_what_these_tests_check_of_each_agent() -> None:
    check_clients()


def expected(name: str, session: Session) -> list[Row]:
    """Return the calls of a session with the whole plan."""
    model: Row = ("llm policy", session.agent, "ok", -1)
    rows: list[Row] = [(f"agent {name}", name, "ok", -1)] * session.prompts
    for number, tools in enumerate(CLIENTS[name].tools):
        state = "error" if session.fails and number == 1 else "ok"
        rows += [model, *((f"tool {tool}", session.agent, state, number) for tool in tools)]
    return [*rows, model]


@pytest.mark.parametrize("name", EACH)
def test_an_agent_edits_fails_and_uses_two_tools(stack: Stack, tmp_path: Path, name: str) -> None:
    client = CLIENTS[name]
    with started(stack, name, tmp_path, *client.steps, client.answer) as run:
        output, _ = run.process.communicate(timeout=SECONDS)
        assert (run.process.returncode, DONE in output) == (0, True), output
        assert (run.work / "a.txt").read_text().strip() == "hello"
        wanted = sorted(expected(name, session) for session in client.sessions)
        rows = run.wait(lambda rows: sessions(rows) == wanted)
        assert sessions(rows) == wanted
        assert len(run.requests) == rows["response_token_ids"].drop_nulls().len()
        assert len(run.requests) == len(client.tools) + 1
        assert rows.filter(kind="tool")["untimed"].any() is (name in UNTIMED)


@pytest.mark.parametrize("name", EACH)
def test_an_interrupted_agent_leaves_a_cancelled_call(
    stack: Stack, tmp_path: Path, name: str
) -> None:
    client = CLIENTS[name]
    with started(stack, name, tmp_path, client.steps[0], "~This is never whole.") as run:
        deadline = time.monotonic() + SECONDS
        while len(run.requests) < 2:
            assert run.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)  # until the agent has the first half
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
        output, _ = run.process.communicate(timeout=SECONDS)
        assert run.process.returncode == client.interrupted, output
        rows = run.wait(lambda rows: not rows["delivered"].all())
    (cut,) = rows.filter(~pl.col("delivered")).to_dicts()
    written = json.loads(cut["output"])[0]["parts"][0]["content"] if cut["output"] else None
    assert written == client.cut
    # it may end before it sends its own records, so that agents and prompts are not always known
    found = describe(rows.filter(pl.col("kind") != "agent", execution_id=cut["execution_id"]))
    assert [(call, state, requester) for call, _, state, requester in found] == [
        ("llm policy", "ok", -1),
        *((f"tool {tool}", "ok", 0) for tool in client.tools[0]),
        ("llm policy", "cancelled", -1),
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("name", DELEGATIONS)
def test_a_sub_agent_has_a_name_and_a_place_in_its_callers_session(
    stack: Stack, tmp_path: Path, name: str
) -> None:
    delegation = DELEGATIONS[name]
    stack.model.tasks[TASK] = delegation.work
    with started(stack, name, tmp_path, *delegation.steps) as run:
        output, _ = run.process.communicate(timeout=SECONDS)
        assert (run.process.returncode, DONE in output) == (0, True), output
        wanted = (delegation.calls, (delegation.place,) * 2)
        rows = run.wait(lambda rows: placed(rows, delegation) == wanted)
        assert placed(rows, delegation) == wanted


def placed(
    rows: pl.DataFrame, delegation: Delegation
) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """Return a sub-agent's calls in its caller's session, and the calls around its LLM calls."""
    names = {row["call_id"]: f"{row['kind']} {row['name']}" for row in rows.to_dicts()}
    callers = rows.filter(kind="tool", name=delegation.tool)["execution_id"]
    own = rows.filter(pl.col("execution_id").is_in(callers.implode()), agent=delegation.agent)
    above = own.filter(kind="llm")["parent_id"]
    return tuple(names[each] for each in own["call_id"]), tuple(names.get(each) for each in above)


@pytest.mark.nightly
def test_a_call_for_a_title_is_a_utility_of_its_session(stack: Stack, tmp_path: Path) -> None:
    client = CLIENTS["opencode"]
    with started(stack, "opencode", tmp_path, client.steps[0], DONE, without=TITLE) as run:
        output, _ = run.process.communicate(timeout=SECONDS)
        assert (run.process.returncode, DONE in output) == (0, True), output
        wanted = [
            ("llm policy", "main", "ok", -1),
            ("llm policy", "main", "ok", -1),
            ("llm policy", "utility-1", "ok", -1),
        ]
        rows = run.wait(lambda rows: rows.filter(kind="llm").height == len(wanted))
    assert sorted(describe(rows.filter(kind="llm"))) == wanted
    (session,) = rows["execution_id"].unique()
    assert session.startswith("ses_")
