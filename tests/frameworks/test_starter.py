"""The agent that `ltrain init` writes for a framework calls the model, once its place is filled."""

from pathlib import Path

import pytest
from tests.frameworks.conftest import ROOT

from ltrain_instrument.instrumentors import State
from ltrain_train.processes import free_port
from ltrain_train.runs import check_recipe
from ltrain_transforms.starter import Survey, write_starter
from ltrain_transforms.starter.frameworks import FRAMEWORKS, Framework
from ltrain_transforms.starter.program import Program

FILLED = {
    "langchain": "from langchain.agents import create_agent\n    return create_agent(model, [])",
    "openai-agents": "from agents import Agent\n    return Agent(name='a', model=model)",
    "pydantic-ai": "from pydantic_ai import Agent\n    return Agent(model)",
    "smolagents": "from smolagents import ToolCallingAgent\n"
    "    return ToolCallingAgent([], model, max_steps=1)",
    "crewai": "from crewai import Agent, Crew, Task\n"
    "    agent = Agent(role='a', goal='a', backstory='a', llm=model)\n"
    "    task = Task(description='{input}', expected_output='a word', agent=agent)\n"
    "    return Crew(agents=[agent], tasks=[task])",
    "agno": "from agno.agent import Agent\n    return Agent(model=model, telemetry=False)",
    "openai": "return lambda text: model.chat.completions.create(\n"
    "        model=llm.model, messages=[{'role': 'user', 'content': text}]\n"
    "    ).choices[0].message.content",
}
"""The body of `make_agent`, by framework."""
ENVIRONMENTS = {"crewai": "openai2", "agno": "otel144"}
"""The environments of the frameworks that are not in `frameworks`."""


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda each: each.name)
def test_a_filled_agent_calls_the_model(
    framework: Framework, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path / "home"))
    for variable in ("LTRAIN_STORE", "LTRAIN_GATEWAY", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("ltrain_train.runs.check.CALL_TIMEOUT", 60.0)
    environment = ENVIRONMENTS.get(framework.name, "frameworks")
    python = ROOT / f".venv-{environment}" / "bin" / "python"
    if not python.exists():
        pytest.fail(f".venv-{environment} is missing: make test-frameworks makes it")
    program = Program(framework, python=python, has_ltrain=True)
    tasks = [{"id": "a", "input": "1 + 1"}]
    survey = Survey("prod", None, "trace", executions=1, llm_calls=1, tasks=tasks, program=program)
    write_starter(survey, tmp_path / "new")
    agent = tmp_path / "new" / "agent.py"
    head, _, tail = agent.read_text().partition("raise NotImplementedError(")
    agent.write_text(f"{head}{FILLED[framework.name]}\n{tail.partition(chr(10))[2]}")
    [found] = [
        each for each in check_recipe(tmp_path / "new" / "ltrain.toml") if each.name == "agent"
    ]
    assert found.state is State.OK, found.detail
    assert "/v1/chat/completions" in found.detail
