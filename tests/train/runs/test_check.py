"""`ltrain check`: the agent's process, the reward and the scripted model are real."""

import json
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.fake_vllm import FakeVllm
from tests.fork_server import ltrain_command
from tests.security.servers import gateway
from tests.tinker_model import write_model as write_tinker_model

from ltrain_instrument.instrumentors import Finding, State
from ltrain_train.processes import free_port
from ltrain_train.runs import check_recipe

AGENT = """
import json, os, sys, time, urllib.request
from dataclasses import dataclass


@dataclass
class Answer:
    text: str


def ask(task, llm, **fields):
    body = {"model": llm.model, "messages": [{"role": "user", "content": task["input"]}], **fields}
    request = urllib.request.Request(
        llm.base_url + "/chat/completions", json.dumps(body).encode(),
        {"authorization": "Bearer " + llm.api_key},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def solve(task, llm):
    return Answer(ask(task, llm))


async def constrained(task, llm):
    return ask(task, llm, logit_bias={"5": 1})


def mistyped(task, llm):
    return ask(task, llm, temperature="0.7")


def seeded(task, llm):
    return ask(task, llm, seed=3, verbosity="low", response_format={"type": "json_object"})


def silent(task, llm):
    return "42"


def raises(task, llm):
    return json.loads(ask(task, llm))


def raises_at_once(task, llm):
    raise KeyError("OPENAI_API_KEY")


def odd(task, llm):
    ask(task, llm)
    return {1, 2}


def hangs(task, llm):
    ask(task, llm)
    time.sleep(60)


def uses_tools(task, llm):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    return ask(task, llm, tools=[tool])
"""
REWARD = """
def score(task, result):
    return 1.0


def fragile(task, result):
    return {"length": len(result)}


def broken(task, result):
    return "good"
"""
RECIPE = """
policy = [{{ name = "p" }}]

[[reward]]
name = "answer"
evaluation = "reward"

[rollout]
tasks = "tasks.jsonl"
agent = "{agent}"
reward = "{reward}"
{more}
"""
TASK = {"id": "a", "input": "1 + 1"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an agent, a reward and tasks; nothing listens at the addresses of the services."""
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path / "home"))
    for variable in ("LTRAIN_STORE", "LTRAIN_GATEWAY", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{free_port()}")
    (tmp_path / "checked_agent.py").write_text(AGENT)
    (tmp_path / "checked_reward.py").write_text(REWARD)
    (tmp_path / "tasks.jsonl").write_text(json.dumps(TASK) + "\n")
    write_recipe(tmp_path)
    return tmp_path


def write_recipe(
    folder: Path,
    agent: str = "checked_agent:solve",
    reward: str = "checked_reward:score",
    more: str = "",
) -> Path:
    path = folder / "ltrain.toml"
    path.write_text(RECIPE.format(agent=agent, reward=reward, more=more))
    return path


def find(path: Path, *names: str) -> list[Finding]:
    return [each for each in check_recipe(path) if each.name in names]


def test_an_agent_that_works_is_ok(folder: Path) -> None:
    found = find(folder / "ltrain.toml", "recipe", "tasks", "agent", "calls", "reward")
    assert [(each.name, each.state) for each in found] == [
        ("recipe", State.OK),
        ("tasks", State.OK),
        ("tasks", State.NOTE),  # there are no held-out tasks
        ("agent", State.OK),
        ("reward", State.OK),
    ]
    assert found[3].detail == (
        "checked_agent:solve on task 'a' sent 1 call to /v1/chat/completions and returned "
        "{'text': 'Hello! How can I help you?'}"
    )
    assert found[4].detail == "the agent's result: 1; None: 1; '': 1; a long text: 1"


@pytest.mark.parametrize(
    ("agent", "state", "sentence"),
    [
        ("checked_agnet:solve", State.FAULT, "Cannot import 'checked_agnet'"),
        ("checked_agent:silent", State.NOTE, "sent no call to the model"),
        ("checked_agent:raises", State.NOTE, "then: json.decoder.JSONDecodeError"),
        ("checked_agent:raises_at_once", State.FAULT, "sent no call, then: KeyError"),
        ("checked_agent:odd", State.FAULT, "The agent's result must be JSON"),
        ("checked_agent:hangs", State.NOTE, "still running after 1 s"),
        ("absent-program", State.FAULT, "status 127"),
        ("echo 7", State.NOTE, "sent no call to the model"),
    ],
)
def test_how_an_agent_ended_is_told(folder: Path, agent: str, state: State, sentence: str) -> None:
    limit = 1.0 if agent.endswith(":hangs") else 60.0
    (found,) = find(write_recipe(folder, agent, more=f"timeout = {limit}"), "agent")
    assert sentence in found.detail
    assert found.state is state


def test_a_field_that_cannot_be_trained_is_a_fault_unless_the_recipe_allows_it(
    folder: Path,
) -> None:
    (found,) = find(write_recipe(folder, "checked_agent:constrained"), "calls")
    assert (found.state, found.detail[:26]) == (State.FAULT, "'logit_bias' is refused in")
    assert 'allow = ["constrained"]' in found.fix
    allowed = write_recipe(folder, "checked_agent:constrained", more='allow = ["constrained"]')
    assert find(allowed, "calls") == []


def test_a_field_of_a_wrong_type_is_a_fault(folder: Path) -> None:
    (found,) = find(write_recipe(folder, "checked_agent:mistyped"), "calls")
    assert (found.state, found.detail) == (
        State.FAULT,
        "'temperature' of the request cannot be '0.7': Input should be a valid number",
    )


def test_the_gateway_of_another_home_is_a_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeVllm() as vllm, gateway(folder / "other", vllm.url) as port:
        monkeypatch.setenv("LTRAIN_GATEWAY", f"http://127.0.0.1:{port}")
        (found,) = find(write_recipe(folder), "services")
    assert found.state is State.FAULT
    assert found.detail.startswith("This gateway has not signed this admin key")


def test_a_field_that_the_gateway_corrects_is_a_note(folder: Path) -> None:
    recipe = write_recipe(folder, "checked_agent:seeded")
    seed, verbosity = find(recipe, "calls")
    assert (seed.state, verbosity.state) == (State.NOTE, State.NOTE)
    assert seed.detail.startswith("'seed' is removed: the rollouts of a group would sample")
    assert verbosity.detail == "'verbosity' is removed: only OpenAI's servers know it"
    with recipe.open("a") as file:
        file.write('[train]\nconstrained = "relaxed"\n')
    relaxed, *others = find(recipe, "calls")
    assert relaxed.detail.startswith("'response_format' is described in the prompt")
    assert others == [seed, verbosity]


@pytest.mark.parametrize(
    ("reward", "states", "sentence"),
    [
        ("checked_reward:scroe", [State.FAULT], "has no function 'scroe'"),
        ("checked_reward:fragile", [State.OK, State.NOTE], "None: checked_reward:fragile failed"),
        ("checked_reward:broken", [State.FAULT], "'good' is a text, not a number"),
        ("exit 3", [State.FAULT], "status 3"),
    ],
)
def test_what_a_reward_returns_or_raises_is_told(
    folder: Path, reward: str, states: list[State], sentence: str
) -> None:
    found = find(write_recipe(folder, "checked_agent:silent", reward), "reward")
    assert [each.state for each in found] == states
    assert sentence in found[-1].detail + found[-1].fix


def test_a_reward_without_a_result_of_the_agent_is_no_fault(folder: Path) -> None:
    path = write_recipe(folder, "checked_agent:sovle", "checked_reward:fragile")
    assert [each.state for each in find(path, "reward")] == [State.OK, State.NOTE]
    path = write_recipe(folder, "checked_agent:sovle", "checked_reward:broken")
    assert [each.state for each in find(path, "reward")] == [State.NOTE]


def test_held_out_tasks_that_are_trained_on_are_a_note(folder: Path) -> None:
    path = write_recipe(folder, "echo 7", more='validation = "tasks.jsonl"')
    (found,) = find(path, "validation")
    assert (found.state, found.detail) == (
        State.NOTE, "1 of the 1 tasks in rollout.validation are also in rollout.tasks",
    )  # fmt: skip
    (folder / "tasks.jsonl").write_text("{}\n")
    (fault,) = find(path, "tasks")
    assert (fault.state, "line 1" in fault.detail) == (State.FAULT, True)
    assert find(path, "agent") == []


def write_model(folder: Path, template: str) -> Path:
    """Write a model directory with one tensor."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template} if template else {})
    )
    save_file({"weight": np.zeros(2, np.float32)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages }}{{ tools }}", {("tools", State.NOTE)}),
        ("{{ messages }}", {("tools", State.NOTE), ("model", State.NOTE)}),
        ("", {("tools", State.NOTE), ("model", State.FAULT)}),
    ],
    ids=["tools", "messages", "none"],
)
def test_a_model_that_does_not_see_the_tools_of_the_agent_is_noted(
    folder: Path, template: str, expected: set[tuple[str, State]]
) -> None:
    model = write_model(folder / "weights", template)
    found = check_recipe(write_recipe(folder, "checked_agent:uses_tools"), model)
    faults = {(each.name, each.state) for each in found if each.state is not State.OK}
    assert faults - {("tasks", State.NOTE)} == expected


def test_a_model_that_is_missing_or_incomplete_is_a_fault(folder: Path) -> None:
    (folder / "empty").mkdir()
    for model, sentence in (
        (None, "Policy 'p' has no version"),
        (folder / "absent", "There is no model directory"),
        (folder / "empty", "has no config.json"),
    ):
        found = {each.name: each for each in check_recipe(write_recipe(folder, "echo 7"), model)}
        assert found["model"].state is State.FAULT
        assert sentence in found["model"].detail


def test_a_tinker_server_needs_a_key_and_a_base_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "")
    write_tinker_model(folder / "model", base_model="Qwen/Qwen3-8B")
    recipe = write_recipe(folder, more='[serve]\non = "tinker"')
    named = recipe.read_text().replace('name = "p" }', 'name = "p", model = "model" }')
    recipe.write_text(named)
    [fault] = find(recipe, "tinker")
    assert fault.state is State.FAULT and "TINKER_API_KEY holds no key" in fault.detail
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    [found] = find(recipe, "tinker")
    assert found.state is State.OK
    assert found.detail == "policy 'p': Qwen/Qwen3-8B of Thinking Machines' service"
    (folder / "model" / "tinker.json").unlink()
    [fault] = find(recipe, "tinker")
    assert fault.state is State.FAULT


def test_training_at_a_tinker_server_needs_a_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "")
    recipe = write_recipe(folder, more='[train]\nbackend = "tinker"')
    [fault] = find(recipe, "tinker")
    assert fault.state is State.FAULT and "TINKER_API_KEY holds no key" in fault.detail
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    [found] = find(recipe, "tinker")
    assert found.state is State.OK
    assert (
        found.detail == "there are a key and the SDK for Thinking Machines' service, which trains"
    )


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("store", "LTRAIN_STORE"),
        ("gateway", "LTRAIN_GATEWAY"),
        ("collector", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
def test_a_port_of_another_program_is_a_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, variable: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
        (found,) = find(write_recipe(folder, "echo 7"), name)
    assert (found.state, found.detail) == (
        State.FAULT, f"another program listens at 127.0.0.1:{port}",
    )  # fmt: skip


def test_the_command_prints_a_line_a_check_and_loads_nothing(folder: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [ltrain_command(), "check", "--json"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert time.monotonic() - began < 60  # on a quiet machine it takes 3 s
    printed = json.loads(done.stdout)
    assert (done.returncode, printed["well"]) == (1, False)
    faults = [each for each in printed["findings"] if each["state"] == "fault"]
    assert [(each["name"], each["detail"]) for each in faults] == [
        ("model", "Policy 'p' has no version")
    ]
    assert not (folder / "home" / "runs").exists()
    assert not (folder / "home" / "policies").exists()
