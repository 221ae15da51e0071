"""Tools that failed by their text, as a recipe says."""

import pytest
from tests.transforms.made import span, spans

from ltrain_transforms.calls import READY, calls
from ltrain_transforms.recipe import Recipe, Source

TEXTS = {
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


@pytest.mark.parametrize("framework", READY)
def test_a_ready_pattern_matches_what_its_framework_returns(framework: str) -> None:
    assert statuses(TEXTS[framework]) == [("ok", None), ("ok", None)]
    assert statuses(TEXTS[framework], framework) == [("error", "tool_error"), ("ok", None)]
    assert statuses("It is sunny.", *READY) == [("ok", None), ("ok", None)]


def test_a_pattern_of_the_recipe_matches_anywhere_in_a_result() -> None:
    assert statuses("so: no rows", "nothing", "no rows$")[0] == ("error", "tool_error")


def test_a_pattern_that_is_none_is_refused() -> None:
    recipe = {"source": {"tool_error": ["("]}, "policy": [{"name": "m"}]}
    with pytest.raises(ValueError, match=r"'\(' is no regular expression: .*Ready ones .*crewai"):
        Recipe.model_validate({**recipe, "reward": [{"use": "tool-failed"}]})
