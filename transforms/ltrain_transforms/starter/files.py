"""Write the files of `ltrain init`, and say what is missing and which command is next."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from symtable import symtable
from typing import Any

from ltrain_instrument.files import OWNER_FILE, create_file
from ltrain_instrument.privacy import content
from ltrain_instrument.quantity import quantity
from ltrain_transforms.errors import FilesExist
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.starter.code_files import MARK, agent_code, reward_code
from ltrain_transforms.starter.conversations import EMPTY
from ltrain_transforms.starter.model_family import find_family
from ltrain_transforms.starter.recipe_text import TASKS, VALIDATION, recipe_text
from ltrain_transforms.starter.survey import MAX_UNITS, Survey

RECIPE, REWARD = "ltrain.toml", "reward.py"


def write_starter(survey: Survey, folder: Path, model: Path | None = None) -> list[str]:
    """Write the files into `folder`, and return lines for the user: files, gaps, next commands.

    Files that exist are kept: an agent, a reward and tasks of the user are what the recipe names.

    Args:
        model: the directory of the model to train, if it is known.

    Raises:
        FilesExist: there is a recipe; nothing is written.
    """
    texts = dict(_files(survey, model))
    if (folder / RECIPE).exists():
        raise FilesExist(
            f"{folder / RECIPE} exists already, and nothing was written. "
            "Name another folder: ltrain init FOLDER."
        )
    written = [name for name, text in texts.items() if create_file(folder / name, text, OWNER_FILE)]
    kept = [name for name in texts if name not in written]
    Recipe.load(folder / RECIPE)
    lines = [_found(survey), f"Wrote {_paths(folder, written)}."]
    if recorded := [name for name in written if name in _with_content(survey)]:
        lines.append(f"Recorded texts are in {_paths(folder, recorded)}; only you can read them.")
    if kept:
        lines.append(f"Kept {_paths(folder, kept)}: there before, and not changed.")
    lines += _notes(survey, model)
    gaps = [*_gaps(survey), *(_functions_to_write(survey, folder) if survey.drives else ())]
    return [*lines, *(f"Missing: {gap}" for gap in gaps), *_next(survey, folder, model)]


def _found(survey: Survey) -> str:
    if not survey.executions:
        return "No execution was read: the recipe has only defaults."
    agents, tools = (", ".join(names) for names in (survey.agents, survey.tools))
    return (
        f"Read {quantity(survey.executions, 'execution')} with "
        f"{quantity(survey.llm_calls, 'LLM call')} of "
        f"{agents or 'no named agent'}; tools: {tools or 'none'}."
    )


def _paths(folder: Path, names: Iterable[str]) -> str:
    return ", ".join(str(folder / name) for name in names)


def _files(survey: Survey, model: Path | None) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file; the recipe is last, because it ends a second try."""
    yield f"{_agent_module(survey)}.py", agent_code(survey)
    yield REWARD, reward_code(survey)
    for name, tasks in ((TASKS, survey.tasks), (VALIDATION, survey.validation)):
        if tasks:
            yield name, "".join(f"{_line(task)}\n" for task in tasks)
    yield RECIPE, recipe_text(survey, f"{_agent_module(survey)}:solve", model)


def _agent_module(survey: Survey) -> str:
    """Return the module of the agent: another one than that of the function that it calls."""
    function = survey.program.function
    return "solver" if function and function.module.split(".")[0] == "agent" else "agent"


def _line(task: dict[str, Any]) -> str:
    text = json.dumps(task, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(task)


def _with_content(survey: Survey) -> list[str]:
    """Return the files with recorded texts."""
    return [TASKS, VALIDATION, *([REWARD] if survey.conversations.results else [])]


def _notes(survey: Survey, model: Path | None) -> Iterator[str]:
    """Yield lines on what was left out, and on what was decided."""
    if survey.executions >= MAX_UNITS:
        yield f"Read only the newest {MAX_UNITS} executions."
    conversations, program = survey.conversations, survey.program
    if survey.run is None and conversations.tasks:
        for reason, count in conversations.left_out.items():
            yield f"Left out of the tasks: inputs {reason} ({count})."
    if program.python is not None and program.has_ltrain:
        yield f"The agent runs with {program.python}, as in the traces."
    if survey.offers_tools and find_family(survey.models, model) is None:
        yield (
            'tool_parser is "hermes", a guess: no known open model was called. '
            "--model DIR reads the family of the model to train."
        )


def _gaps(survey: Survey) -> Iterator[str]:
    if not survey.executions:
        yield _no_executions(survey)
        return
    empty = survey.conversations.left_out
    if not survey.tasks and empty:
        reasons = "; ".join(f"{count} {reason}" for reason, count in empty.items())
        switch = f" Content is off: {content.SWITCH}." if list(empty) == [EMPTY] else ""
        yield f"tasks: no recorded input can be a task ({reasons}).{switch} Write {TASKS}."
    if not survey.llm_calls:
        yield "an LLM call. `ltrain doctor` in the agent's environment names the instrumentation."
    elif not survey.with_tokens and survey.policies:
        yield (
            f"token ids: the server of {', '.join(survey.policies)} does not report them to the "
            "gateway. Start it with a model to train, `ltrain serve MODEL`; `ltrain convert` needs "
            "no token ids."
        )
    elif not survey.with_tokens and not (survey.drives and survey.run is None):
        yield (
            "token ids: no call went through the gateway. Start it with `ltrain serve MODEL` and "
            "point the agent at it, or let `ltrain run` drive the agent."
        )
    elif survey.with_tokens and (without := survey.llm_calls - survey.with_tokens):
        yield (
            f"token ids of {without} of {survey.llm_calls} LLM calls: they failed, or did not go "
            "through the gateway, and are not trained on."
        )
    if not survey.rewards and not survey.drives:
        yield (
            "rewards. Send feedback, `ltrain reward ID 1` or ltrain.reward(1, trace=…), or write "
            "score() in reward.py for rollouts that ltrain runs."
        )
    elif survey.run is not None and not survey.tasks:
        yield f"tasks: write {TASKS}, a line each with id and input."
    if (python := survey.program.python) and not survey.program.has_ltrain:
        yield (
            f"ltrain in the environment of the traces. Install it, `{python} -m pip install "
            "/path/to/ltrain`, and remove the # before python in the recipe."
        )
    if survey.tasks and not survey.validation:
        yield f"held-out tasks: write {VALIDATION}, and name it in [rollout] validation."
    if survey.altered_tasks:
        yield (
            f"{quantity(survey.altered_tasks, 'task')} whose text was shortened or redacted before "
            f"it was recorded, and which {TASKS} therefore lacks."
        )
    if survey.run is not None and not survey.groups:
        yield "groups: no task has two rollouts, so they cannot be compared with each other."


def _no_executions(survey: Survey) -> str:
    if not survey.dropped_spans:
        return "traces. `ltrain traces` says how to get them."
    reasons = ", ".join(survey.drop_reasons)
    return f"executions: none of {survey.dropped_spans} spans belongs to one ({reasons})."


def _functions_to_write(survey: Survey, folder: Path) -> Iterator[str]:
    """Yield what the modules of the agent and the reward lack."""
    agent = f"{_agent_module(survey)}.py"
    for name, function, what in ((agent, "solve", "agent"), (REWARD, "score", "reward")):
        code = (folder / name).read_text(errors="replace")
        if not _defines(code, function):
            yield f"{function}() in {name}. Write it, or name another function in [rollout] {what}."
        elif MARK in code:
            yield f"your {what} in {name}: the place is marked with {MARK}."


def _defines(code: str, name: str) -> bool:
    """Return whether a module binds a name."""
    try:
        symbol = symtable(code, "module", "exec").lookup(name)
    except (SyntaxError, ValueError, KeyError):
        return False
    return symbol.is_assigned() or symbol.is_imported()


def _next(survey: Survey, folder: Path, model: Path | None) -> Iterator[str]:
    recipe = folder / RECIPE
    if not survey.executions or not survey.llm_calls:
        yield "Next: ltrain doctor"
        return
    if survey.drives:
        directory = "" if model else " --model path/to/huggingface-model"
        yield f"Next: ltrain check {recipe}{directory}"
        yield f"      ltrain run {recipe}{directory}"
    else:
        yield f"Next: ltrain rules {recipe}"
        yield f"      ltrain run {recipe} --once --dry-run"
