"""From a script that nobody changed to a training that `ltrain check` accepts, without a model."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fork_server import ltrain_command
from tests.frameworks.model import Model
from tests.up import Up, start_up

from ltrain_instrument.instrumentors import State
from ltrain_train.processes import free_port
from ltrain_train.runs import check_recipe

SCRIPT = """
import json
from openai import OpenAI

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
client = OpenAI()
for number in range(5):
    messages = [{"role": "user", "content": f"Sum {number}? [[add(a=1); It is {number}.]]"}]
    while True:
        answer = client.chat.completions.create(model="fake", messages=messages, tools=[TOOL])
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "1"})
"""
FILLED = """
    def agent(question: str) -> str:
        answer = model.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": question}]
        )
        return answer.choices[0].message.content

    return agent
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    up = start_up(tmp_path / "home" / "store")
    yield up
    up.stop()


def test_a_recorded_script_becomes_a_training(
    tmp_path: Path, model: Model, up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, script = tmp_path / "home", tmp_path / "shop" / "sums.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    addresses = {
        "LTRAIN_HOME": str(home),
        "LTRAIN_STORE": up.dsn,
        "OTEL_EXPORTER_OTLP_ENDPOINT": up.endpoint,
        "LTRAIN_GATEWAY": f"http://127.0.0.1:{free_port()}",
    }
    for name, value in addresses.items():
        monkeypatch.setenv(name, value)
    subprocess.run(
        [Path(sys.prefix) / "bin" / "opentelemetry-instrument", sys.executable, "sums.py"],
        cwd=script.parent,
        env={**os.environ, "OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none"},
        check=True,
    )
    init = [ltrain_command(), "init", "new"]
    done = subprocess.run(init, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Read 5 executions with 10 LLM calls of no named agent; tools: none."
    assert lines[-2] == "Next: ltrain check new/ltrain.toml --model path/to/huggingface-model"

    recorded = [
        json.loads(line)["input"]
        for name in ("tasks.jsonl", "val.jsonl")
        for line in (tmp_path / "new" / name).read_text().splitlines()
    ]
    assert sorted(text.partition("?")[0] for text in recorded) == [f"Sum {n}" for n in range(5)]
    agent = tmp_path / "new" / "agent.py"
    assert f'# The traces are of "{script}".' in agent.read_text()
    recipe = tmp_path / "new" / "ltrain.toml"
    before = {each.name: each.state for each in check_recipe(recipe)}
    assert before["agent"] is State.FAULT
    head, _, tail = agent.read_text().partition("    raise NotImplementedError(")
    agent.write_text(f"{head}{FILLED}{tail.partition(chr(10))[2]}")
    after = [each for each in check_recipe(recipe) if each.name != "model"]
    assert [(each.name, each.detail) for each in after if each.state is not State.OK] == []
    assert {"tasks", "validation", "agent", "reward", "store", "gateway"} <= {
        each.name for each in after
    }
