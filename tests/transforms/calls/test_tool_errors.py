"""Tools that failed by their text, as a recipe says."""

from time import monotonic

import pytest
from tests.transforms.made import span, spans

from ltrain_transforms.calls import calls
from ltrain_transforms.datasets.pipeline import derive
from ltrain_transforms.recipe import CallReward, Policy, Recipe, Source, failed_results

EXIT_CODE = """Command: cat nothing
Directory: (root)
Output: cat: nothing: No such file or directory
Error: (none)
Exit Code: 1
Signal: (none)
Process Group PGID: (none)"""
TEXTS = {
    "codex": "Chunk ID: 48d418\nWall time: 0.0 seconds\nProcess exited with code 1\nOutput:\nno",
    "gemini-cli": EXIT_CODE,
    "mini-swe-agent": '{\n  "returncode": 1,\n  "output": "no"\n}',
    "crewai": "\nError executing tool. coworker mentioned not found",
    "dspy": "Execution error in weather: KeyError",
    "haystack": "Failed to invoke Tool `weather` with parameters {}. Error: no",
    "langchain": "Error: KeyError('x')\n Please fix your mistakes.",
    "llama-index": "Encountered error: no",
    "openai-agents": "An error occurred while running the tool. Please try again. Error: no",
}


def statuses(text: str, *patterns: str) -> list[tuple[str, str | None]]:
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": text}
    node = {"openinference.span.kind": "CHAIN", "output.value": text}
    made = spans(span("tool", tool), span("node", node, at=(2, 3)))
    rows, _ = calls(made, Source(tool_error=patterns).tool_error)
    return rows.select("status", "error_type").rows()


@pytest.mark.parametrize("framework", failed_results())
def test_a_ready_pattern_matches_what_its_framework_returns(framework: str) -> None:
    assert statuses(TEXTS[framework]) == [("ok", None), ("ok", None)]
    assert statuses(TEXTS[framework], framework) == [("error", "tool_error"), ("ok", None)]
    assert statuses("It is sunny.", *failed_results()) == [("ok", None), ("ok", None)]


@pytest.mark.parametrize(
    "text",
    [
        "Wall time: 0.1 seconds\nProcess exited with code 0\nOutput:\nProcess exited with code 1",
        "Output: the log has\nExit Code: 1\nand more\nError: (none)\nExit Code: 0\nSignal: 0",
        '{"returncode": 0, "output": "\\"returncode\\": 1"}',
    ],
)
def test_an_exit_code_in_the_output_of_a_command_is_not_its_own(text: str) -> None:
    assert statuses(text, *failed_results())[0] == ("ok", None)


def test_a_pattern_of_the_recipe_matches_anywhere_in_a_result() -> None:
    assert statuses("so: no rows", "nothing", "no rows$")[0] == ("error", "tool_error")


@pytest.mark.parametrize(
    "text, name",
    [
        (
            "Error invoking tool 'w' with kwargs {} with error:\n no\n"
            " Please fix the error and try again.",
            "langchain",
        ),
        ("Exit code: 127\nWall time: 0 seconds\nOutput:\nno", "codex"),
        ("apply_patch verification failed: no such file", "codex"),
        ("<returncode>-9</returncode>", "mini-swe-agent"),
        ("Output: no\nExit Code: 2", "gemini-cli"),
        ("Error: weathr is not a valid tool, try one of [weather].", "langchain"),
        ("An error occurred while running the tool: no", "llama-index"),
        ("An error occurred while parsing tool arguments. Please try again.", "openai-agents"),
    ],
)
def test_a_framework_has_several_texts(text: str, name: str) -> None:
    assert statuses(text, name)[0] == ("error", "tool_error")


def test_a_tool_that_failed_keeps_its_error_type() -> None:
    tool = {"gen_ai.operation.name": "execute_tool", "error.type": "KeyError"}
    made = spans(span("tool", {**tool, "gen_ai.tool.call.result": "Error: no"}))
    rows, _ = calls(made, ("^Error",))
    assert rows.select("status", "error_type").rows() == [("error", "KeyError")]


def test_the_next_call_and_rules_see_the_failure() -> None:
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": "Error: no"}
    made = spans(span("one", tool), span("two", tool, at=(2, 3)))
    source = Source(execution="trace", tool_error=("^Error",))
    reward = CallReward(name="failure", on="tool", when="status = 'error'", value="-1")
    recipe = Recipe(source=source, policy=(Policy(name="m"),), reward=(reward,))
    tables = derive(made, recipe).tables
    assert tables["calls"]["previous_status"].to_list() == [None, "error"]
    assert tables["rewards"].select("call_id", "value").rows() == [("one", -1.0), ("two", -1.0)]


@pytest.mark.parametrize(
    "pattern, reason",
    [
        ("(", "unclosed group"),
        ("(?=x)", "look-around"),
        ("", "it matches every result"),
        (".*", "it matches every result"),
        ("openai_agents", "did you mean 'openai-agents'\\?"),
        ("crew-ai", "did you mean 'crewai'\\?"),
        ("(a{1000}){1000}", "Compiled regex exceeds size limit"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(pattern: str, reason: str) -> None:
    recipe = {"source": {"tool_error": [pattern]}, "policy": [{"name": "m"}]}
    with pytest.raises(ValueError, match=rf"failed result: {reason}.*Ready ones .*crewai"):
        Recipe.model_validate({**recipe, "reward": [{"use": "tool-failed"}]})


def test_a_hostile_text_takes_time_in_proportion_to_its_length() -> None:
    """A backtracking engine would need 2^100000 steps."""
    began = monotonic()
    assert statuses("a" * 100_000 + "!", "^(a+)+$")[0] == ("ok", None)
    assert monotonic() - began < 20
