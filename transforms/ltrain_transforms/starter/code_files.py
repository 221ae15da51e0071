"""The Python files of `ltrain init`: `agent.py` and `reward.py`.

Recorded names and texts enter the code only as identifiers and as literals.
"""

import json
from collections.abc import Iterator
from typing import Any

from ltrain_transforms.starter.conversations import StoredResult
from ltrain_transforms.starter.frameworks import UNKNOWN
from ltrain_transforms.starter.program import Function, Program
from ltrain_transforms.starter.survey import Survey

MARK = "FILL IN"
"""The mark of a place that the user fills in."""
GOLD = ("gold", "answer", "expected", "reference", "target", "label", "solution")
"""Keys of tasks that usually have the right answer."""
MAX_NAMES = 1_000
"""Characters of a list of names in a comment."""

SKELETON = '''"""The agent: called with a task, and with the endpoint of the model."""

from typing import Any
{imports}

def make_agent(model: Any, llm: Any) -> Any:
    """Return {builds}."""
{known}    raise NotImplementedError("{mark}: build your agent here: agent.py, make_agent()")


def solve(task: dict[str, Any], llm: Any) -> Any:
    """Return the agent's result for `task["input"]`."""
    model = {model}
    agent = make_agent(model, llm)
    return {call}
'''

CALLING = '''"""The agent: calls the function that the traces show."""

import os
{imports}

{define} solve(task: dict[str, Any], llm: Any) -> Any:
    """Return the agent's result for `task["input"]`."""
    # A process runs one attempt at a time ([rollout] concurrency), so its model can be in its
    # environment. {mark} what does not read it at each call: a client that is made at import, and
    # the name of the model. `ltrain check` tells whether the calls reach the model.
    os.environ["OPENAI_BASE_URL"] = llm.base_url
    os.environ["OPENAI_API_KEY"] = llm.api_key
    os.environ["OPENAI_MODEL"] = llm.model
    return {call}(task["input"])
'''

REWARD_TEXT = '''"""The reward: called with a task and with what the agent returned for it."""

from typing import Any

{results}
def score(task: dict[str, Any], result: Any) -> float:
    """Return the reward of a result, e.g. 1.0 for the right answer and 0.0 for a wrong one.

    A task has the keys of its line in the task file{keys}.
    """
{body}
'''

RESULTS_TEXT = """# Stored results, to judge by hand: `python reward.py` prints the reward of each.
STORED: list[dict[str, Any]] = [
{rows}]

"""

RUN_TEXT = """

if __name__ == "__main__":
    for each in STORED:
        print(score(each["task"], each["result"]), each)
"""


def agent_code(survey: Survey) -> str:
    """Return `agent.py`: a call of the recorded function, else the framework's lines."""
    function = survey.program.function
    if function is not None:
        return _calling(function)
    lines = survey.program.framework or UNKNOWN
    return SKELETON.format(
        imports=f"\n{lines.imports}\n" if lines.imports else "",
        builds=lines.builds,
        known="".join(f"    # {line}\n" for line in _known(survey)),
        mark=MARK,
        model=lines.model,
        call=lines.call,
    )


def _calling(function: Function) -> str:
    lines = ["from typing import Any", "", f"from {function.module} import {function.name}", ""]
    if function.folder is not None:
        lines[0:1] = ["import sys", lines[0], "", f"sys.path.insert(0, {str(function.folder)!a})"]
        lines[-2] += "  # noqa: E402"
    return CALLING.format(
        imports="\n".join(lines),
        define="async def" if function.is_async else "def",
        mark=MARK,
        call=f"await {function.name}" if function.is_async else function.name,
    )


def _known(survey: Survey) -> Iterator[str]:
    """Yield comments on the recorded agent."""
    program: Program = survey.program
    if program.script is not None:
        yield f"The traces are of {json.dumps(str(program.script))}."
    for name, values in (("Agents", survey.agents), ("Tools", survey.tools)):
        if values:
            yield f"{name} in the traces: {json.dumps(values)[:MAX_NAMES]}"


def reward_code(survey: Survey) -> str:
    """Return `reward.py`: stored results, and a first function that judges them."""
    keys = sorted({key for task in survey.tasks for key in task} - {"id", "domain", "input"})
    results = "".join(f"    {_result(each)},\n" for each in survey.conversations.results)
    code = REWARD_TEXT.format(
        results=RESULTS_TEXT.format(rows=results) if results else "",
        keys=_keys(keys),
        body="\n".join(f"    {line}" for line in _body(gold_key(survey))),
    )
    return code + RUN_TEXT if results else code


def gold_key(survey: Survey) -> str | None:
    """Return the key of the tasks that has the right answer, if every task has one as text."""
    return next(
        (
            key
            for key in GOLD
            if survey.tasks and all(isinstance(task.get(key), str) for task in survey.tasks)
        ),
        None,
    )


def _keys(keys: list[str]) -> str:
    """Return the further keys of the tasks that are identifiers: other text may end a docstring."""
    names = [key for key in keys if key.isidentifier()]
    return f", here also {', '.join(names)}"[:MAX_NAMES] if names else ""


def _body(gold: str | None) -> Iterator[str]:
    if gold is not None:
        yield f"# {MARK}: what counts as right; this is 1.0 only where the texts are equal"
        yield f'return float(str(result or "").strip() == task["{gold}"].strip())'
        return
    yield f"# {MARK}: your judgement; this is 1.0 for any answer, and teaches nothing yet"
    yield 'return float(bool(str(result or "").strip()))'


def _result(stored: StoredResult) -> str:
    row: dict[str, Any] = {"task": {"input": stored.input}, "result": stored.result}
    return repr(row | ({"evaluations": stored.evaluations} if stored.evaluations else {}))
