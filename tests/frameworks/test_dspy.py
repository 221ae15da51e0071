"""dspy: agents that call tools, awaited ones, and one that another uses as a tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls, failed_texts

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run, RunResult


def run_agents(run: Run, folder: Path, *modes: str) -> RunResult:
    variables = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DSPY_CACHEDIR": str(folder / "cache")}
    return run("otel144", "dspy_agents", *modes, **variables)


def test_agents(run: Run, tmp_path: Path) -> None:
    result = run_agents(run, tmp_path, "tools", "awaited", "team")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Sunny.\nOne by one.\nSunny it is.\n"
    assert describe_calls(result) == [
        "ReActV2 ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  ReActV2 ok weather(city=Paris): It is sunny in Paris.",
        "  ReActV2 ok weather(city=Rome): It is sunny in Rome.",
        "ReActV2 ok tool_calls 7+5: book(city=Bath)",
        "  ReActV2 error book(city=Bath): PermissionError",
        "ReActV2 ok tool_calls 7+5: submit(answer=Sunny.)",
        '  ReActV2 ok submit(answer=Sunny.): {"answer": "Sunny."}',
        "ReActV2 ok tool_calls 7+5: weather(city=Rome)",
        "  ReActV2 ok weather(city=Rome): It is sunny in Rome.",
        "ReActV2 ok tool_calls 7+5: submit(answer=One by one.)",
        '  ReActV2 ok submit(answer=One by one.): {"answer": "One by one."}',
        "ReActV2 ok tool_calls 7+5: forecast(city=Oslo)",
        "  ReActV2 ok forecast(city=Oslo): Sunny.",
        "ReActV2 ok tool_calls 7+5: weather(city=Oslo)",
        "  ReActV2 ok weather(city=Oslo): It is sunny in Oslo.",
        "ReActV2 ok tool_calls 7+5: submit(answer=Sunny.)",
        '  ReActV2 ok submit(answer=Sunny.): {"answer": "Sunny."}',
        "ReActV2 ok tool_calls 7+5: submit(answer=Sunny it is.)",
        '  ReActV2 ok submit(answer=Sunny it is.): {"answer": "Sunny it is."}',
    ]
    answers = result.states.filter(result.states["variable"] == "answer")["value"].to_list()
    assert answers == ['"Sunny it is."']
    [failed] = failed_texts(result, "dspy")
    assert failed.startswith("Execution error in book: ")
    completeness.check(
        "dspy", "otel144", result, {"C6": "ReActV2 runs the tools of a turn one after the other"}
    )


def test_requests_of_its_own_client_continue_the_trace(run: Run, tmp_path: Path) -> None:
    result = run_agents(run, tmp_path, "own_client")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Sunny.\nOne by one.\n"
    assert {each.headers["user-agent"] for each in result.model_requests} == {"lm15/stdlib"}
    assert [each.failed for each in result.model_requests].count(False) == 5
    assert len(result.calls_of_kind("llm")) == 5
    assert completeness.one_trace(result)
