"""Write the files of `ltrain init`, and say what is missing and which command is next."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from symtable import symtable

from ltrain_transforms.errors import FilesExist
from ltrain_transforms.recipe import Filter, Recipe
from ltrain_transforms.starter.survey import Survey

RECIPE, AGENT, REWARD = "ltrain.toml", "agent.py", "reward.py"
TASKS, VALIDATION = "tasks.jsonl", "val.jsonl"

STUB = "raise NotImplementedError("

AGENT_TEXT = '''"""The agent: called with a task, and with the endpoint of the model."""

from typing import Any


def solve(task: dict[str, Any], llm: Any) -> Any:
    """Return the agent's result for `task["input"]`.

    Call the model at `llm.base_url` with `llm.api_key` and `llm.model`, e.g.
    `OpenAI(base_url=llm.base_url, api_key=llm.api_key)`.
    """
    raise NotImplementedError("Call your agent here: agent.py, solve()")
'''

REWARD_TEXT = '''"""The reward: called with a task and with what the agent returned for it."""

from typing import Any


def score(task: dict[str, Any], result: Any) -> float:
    """Return the reward of a result, e.g. 1.0 for the right answer and 0.0 for a wrong one.

    A task has the keys of its line in the task file{keys}.
    """
    raise NotImplementedError("Judge the result here: reward.py, score()")
'''


def write_starter(survey: Survey, folder: Path) -> list[str]:
    """Write the files into `folder`, and return lines for the user: files, gaps, next commands.

    Files that exist are kept: an agent, a reward and tasks of the user are what the recipe names.

    Raises:
        FilesExist: there is a recipe; nothing is written.
    """
    texts = dict(_files(survey))
    if (folder / RECIPE).exists():
        raise FilesExist(
            f"{folder / RECIPE} exists already, and nothing was written. "
            "Name another folder: ltrain init FOLDER."
        )
    kept = [name for name in texts if (folder / name).exists()]
    folder.mkdir(parents=True, exist_ok=True)
    written = {name: text for name, text in texts.items() if name not in kept}
    for name, text in written.items():
        (folder / name).write_text(text)
    Recipe.load(folder / RECIPE)
    agents, tools = (", ".join(names) for names in (survey.agents, survey.tools))
    found = (
        f"Read {survey.executions} executions with {survey.llm_calls} LLM calls of "
        f"{agents or 'no named agent'}; tools: {tools or 'none'}."
    )
    lines = [found, f"Wrote {_paths(folder, written)}."]
    if kept:
        lines.append(f"Kept {_paths(folder, kept)}: there before, and not changed.")
    gaps = [*_gaps(survey), *(_functions_to_write(folder) if survey.run is not None else ())]
    return [*lines, *(f"Missing: {gap}" for gap in gaps), *_next(survey, folder)]


def _paths(folder: Path, names: Iterable[str]) -> str:
    return ", ".join(str(folder / name) for name in names)


def _files(survey: Survey) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file; the recipe is last, because it ends a second try."""
    yield AGENT, AGENT_TEXT
    keys = sorted({key for task in survey.tasks for key in task} - {"id", "domain", "input"})
    yield REWARD, REWARD_TEXT.replace("{keys}", f", here also {', '.join(keys)}" if keys else "")
    for name, tasks in ((TASKS, survey.tasks), (VALIDATION, survey.validation)):
        if tasks:
            lines = (json.dumps(task, ensure_ascii=False) for task in tasks)
            yield name, "".join(f"{line}\n" for line in lines)
    yield RECIPE, "\n".join(_recipe(survey)) + "\n"


def _recipe(survey: Survey) -> Iterator[str]:
    yield from _source(survey)
    yield from _rollout(survey)
    yield "[[policy]]"
    yield f"name = {_toml(policy_name(survey))}"
    if survey.agents:
        yield f"# agents = {_toml(survey.agents)} # train only some of them; without: all"
    if survey.temperature is not None and survey.temperature > 0:
        yield f"sampling = {{ temperature = {survey.temperature:g} }}"
    yield ""
    yield from _rewards(survey)
    if survey.longest > Filter().max_tokens:
        yield "[filter] # longer rows are dropped"
        yield f"max_tokens = {_rounded(survey.longest)} # longest call: {survey.longest} tokens\n"
    yield "[serve]"
    if survey.longest:
        longest = f"longest call so far: {survey.longest} tokens"
        yield f"# max_model_len = {_rounded(survey.longest)} # {longest}; a limit saves memory"
    comment = "how the model writes tool calls: vLLM's parser of its family"
    yield f'{"" if survey.offers_tools else "# "}tool_parser = "hermes" # {comment}'


def _source(survey: Survey) -> Iterator[str]:
    yield "[source]"
    if survey.run is not None:
        yield f"run = {_toml(f'{survey.run}-2')} # a new run; the stored one: {survey.run!r}"
    else:
        yield f'mode = "{survey.mode}" # the traffic that is stored, without a run'
        yield f'execution = "{survey.execution}" # what is rewarded as one: trace or session'
    yield ""


def _rollout(survey: Survey) -> Iterator[str]:
    comment = "" if survey.run is not None else "# "
    if comment:
        yield "# With tasks, `ltrain run` also drives the agent itself:"
    yield f"{comment}[rollout]"
    yield f'{comment}tasks = "{TASKS}" # lines like {{"id": "1", "input": "…"}}'
    if survey.validation:
        yield f'{comment}validation = "{VALIDATION}"'
    yield f'{comment}agent = "agent:solve"'
    yield f'{comment}reward = "reward:score"'
    yield ""


def _rewards(survey: Survey) -> Iterator[str]:
    rewards = survey.rewards
    if not rewards:
        yield "[[reward]] # no trace has one yet"
        yield 'name = "reward"\nevaluation = "reward"\nfrom = "any"\n'
    for number, reward in enumerate(rewards):
        comment = "# " if number else ""
        yield f"{comment}[[reward]] # in {reward.executions} executions"
        yield f"{comment}name = {_toml(reward.name)}"
        yield f"{comment}evaluation = {_toml(reward.name)}"
        if reward.source != "runner":
            yield f'{comment}from = "any" # an agent or a user gave it'
        yield ""
    if survey.tools:
        comment = "" if survey.failed_tools else "# "
        failed = f"{survey.failed_tools} of {survey.tool_calls} tool calls failed"
        yield f"{comment}[[reward]] # {failed}; a failure costs the call that requested it"
        yield f'{comment}use = "tool-failed"\n'


def policy_name(survey: Survey) -> str:
    """Return the policy that the gateway recorded, else a name for a new one."""
    return survey.policies[0] if survey.policies else "mine"


def _gaps(survey: Survey) -> Iterator[str]:
    if not survey.executions:
        yield _no_executions(survey)
        return
    if not survey.llm_calls:
        yield "an LLM call. `ltrain doctor` in the agent's environment names the instrumentation."
    elif not survey.with_tokens and survey.policies:
        yield (
            f"token ids: the server of {', '.join(survey.policies)} does not report them to the "
            "gateway. Start it with a model to train, `ltrain serve MODEL`; `ltrain convert` needs "
            "no token ids."
        )
    elif not survey.with_tokens:
        yield (
            "token ids: no call went through the gateway. Start it with `ltrain serve MODEL` and "
            "point the agent at it, or let `ltrain run` drive the agent."
        )
    elif without := survey.llm_calls - survey.with_tokens:
        yield (
            f"token ids of {without} of {survey.llm_calls} LLM calls: they did not go through the "
            "gateway, and are not trained on."
        )
    if not survey.rewards:
        yield (
            "rewards. Send feedback, `ltrain reward ID 1` or ltrain.reward(1, trace=…), or write "
            "score() in reward.py for rollouts that ltrain runs."
        )
    if survey.run is not None and not survey.tasks:
        yield f"tasks: write {TASKS}, a line each with id and input."
    if survey.altered_tasks:
        yield (
            f"{survey.altered_tasks} tasks whose text was shortened or redacted before it was "
            f"recorded: they are not in {TASKS}."
        )
    if survey.run is not None and not survey.groups:
        yield "groups: no task has two rollouts, so they cannot be compared with each other."


def _no_executions(survey: Survey) -> str:
    if not survey.dropped_spans:
        return "traces. `ltrain traces` says how to get them."
    reasons = ", ".join(survey.drop_reasons)
    return f"executions: none of {survey.dropped_spans} spans belongs to one ({reasons})."


def _functions_to_write(folder: Path) -> Iterator[str]:
    """Yield what the modules of the agent and the reward lack."""
    for name, function, what in ((AGENT, "solve", "agent"), (REWARD, "score", "reward")):
        code = (folder / name).read_text(errors="replace")
        if not _defines(code, function):
            yield f"{function}() in {name}. Write it, or name another function in [rollout] {what}."
        elif STUB in code:
            yield f"your {what} in {name}, {function}()."


def _defines(code: str, name: str) -> bool:
    """Return whether a module binds a name."""
    try:
        symbol = symtable(code, "module", "exec").lookup(name)
    except (SyntaxError, ValueError, KeyError):
        return False
    return symbol.is_assigned() or symbol.is_imported()


def _next(survey: Survey, folder: Path) -> Iterator[str]:
    recipe = folder / RECIPE
    if not survey.executions or not survey.llm_calls:
        yield "Next: ltrain doctor"
        return
    if survey.run is not None:
        yield f"Next: ltrain rules {recipe} --run {survey.run}"
        yield f"      ltrain run {recipe} --model path/to/huggingface-model"
    else:
        yield f"Next: ltrain rules {recipe}"
        yield f"      ltrain run {recipe} --once --dry-run"


def _rounded(tokens: int) -> int:
    """Return twice the number of tokens, up to the next multiple of 512."""
    return -(-2 * tokens // 512) * 512


def _toml(value: str | list[str]) -> str:
    """Return a string or a list of them as TOML, whose strings JSON's are."""
    return json.dumps(value, ensure_ascii=False)
