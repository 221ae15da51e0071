"""The recipe of `ltrain init`, `ltrain.toml`."""

import json
from collections.abc import Iterator
from pathlib import Path

from ltrain_instrument.quantity import quantity
from ltrain_transforms.recipe import Filter, Rollout
from ltrain_transforms.starter.model_family import find_family
from ltrain_transforms.starter.survey import Survey

MAIN = "main"
"""The gateway's name of the agent of a closed client."""
TASKS, VALIDATION = "tasks.jsonl", "val.jsonl"

JUDGE = """\
# A language model as judge, beside score() or, without [rollout] reward, in its place:
# [[reward]]
# use = "judge"
# name = "judge"
# weight = 0.5
# [reward.params]
# rubric = "The answer does what the question asks for, correctly and completely."
# model = "gpt-5"
# url = "https://api.openai.com/v1"
# key = "OPENAI_API_KEY" # the variable with the key
"""


def recipe_text(survey: Survey, agent: str, model: Path | None) -> str:
    """Return the recipe of a survey.

    Args:
        agent: the agent, `module:function`.
        model: the directory of the model to train, if it is known.
    """
    return "\n".join(_lines(survey, agent, model)) + "\n"


def _lines(survey: Survey, agent: str, model: Path | None) -> Iterator[str]:
    yield from _source(survey)
    yield from _rollout(survey, agent)
    yield "[[policy]]"
    yield f"name = {_toml(policy_name(survey))}"
    if model is not None:
        yield f"model = {_toml(str(model.resolve()))}"
    yield from _agents(survey.agents)
    if survey.temperature is not None and survey.temperature > 0:
        yield f"sampling = {{ temperature = {survey.temperature:g} }}"
    yield ""
    yield from _rewards(survey)
    if survey.longest > Filter().max_tokens:
        yield "[filter] # longer rows are dropped"
        yield f"max_tokens = {_rounded(survey.longest)} # longest call: {survey.longest} tokens\n"
    yield from _serve(survey, model)


def _agents(agents: list[str]) -> Iterator[str]:
    """Yield the agents of the policy: `main` where the gateway found utility calls beside it."""
    others = [name for name in agents if name != MAIN]
    if MAIN in agents and others:
        rest = ", ".join(others)
        yield f"agents = {_toml([MAIN])} # not its utility calls and sub-agents: {_comment(rest)}"
    elif agents:
        yield f"# agents = {_toml(agents)} # train only some of them; without: all"


def _source(survey: Survey) -> Iterator[str]:
    yield "[source]"
    if survey.run is not None:
        yield f"run = {_toml(f'{survey.run}-2')} # a new run; the stored one: {survey.run!r}"
    elif survey.drives:
        yield f"run = {_toml(survey.program.service or 'first')} # the name of a new run"
    else:
        yield f'mode = "{survey.mode}" # the traffic that is stored, without a run'
        yield f'execution = "{survey.execution}" # what is rewarded as one: trace or session'
    if found := survey.failed_results:
        failed = f"{max(found.values())} of {quantity(survey.tool_calls, 'tool call')}"
        yield f"tool_error = {_toml([*found])} # texts of failures, in the results of {failed}"
    yield ""


def _rollout(survey: Survey, agent: str) -> Iterator[str]:
    comment = "" if survey.drives else "# "
    if comment:
        yield "# With tasks, `ltrain run` also drives the agent itself:"
    yield f"{comment}[rollout]"
    yield f'{comment}tasks = "{TASKS}" # lines like {{"id": "1", "input": "…"}}'
    if survey.validation:
        yield f'{comment}validation = "{VALIDATION}" # tasks that are not trained on'
    yield f'{comment}agent = "{agent}"'
    yield f'{comment}reward = "reward:score"'
    if 0 < len(survey.tasks) < Rollout.model_fields["tasks_per_wave"].default:
        yield f"{comment}tasks_per_wave = {len(survey.tasks)} # all there are"
    if survey.program.function is not None and not survey.program.function.is_async:
        yield f"{comment}workers = 4 # processes"
        yield f"{comment}concurrency = 1 # the agent has its model in its environment"
    if python := survey.program.python:
        missing = "" if survey.program.has_ltrain else "# "
        yield f"{comment or missing}python = {_toml(str(python))} # the traces' environment"
    yield ""


def _rewards(survey: Survey) -> Iterator[str]:
    rewards = survey.rewards
    if survey.drives and survey.run is None:
        yield '[[reward]] # the value of score() in reward.py\nname = "reward"'
        yield f'evaluation = "reward"\n\n{JUDGE}'
    elif not rewards:
        yield "[[reward]] # no trace has one yet"
        anyone = "" if survey.drives else 'from = "any"\n'
        yield f'name = "reward"\nevaluation = "reward"\n{anyone}'
    for number, reward in enumerate(rewards if survey.run or not survey.drives else ()):
        comment = "# " if number else ""
        yield f"{comment}[[reward]] # in {quantity(reward.executions, 'execution')}"
        yield f"{comment}name = {_toml(reward.name)}"
        yield f"{comment}evaluation = {_toml(reward.name)}"
        if reward.source != "runner" and not (survey.drives and reward.name == "reward"):
            yield f'{comment}from = "any" # an agent or a user gave it'
        yield ""
    if survey.tools:
        count = survey.failed_tools + max(survey.failed_results.values(), default=0)
        failed = f"{count} of {survey.tool_calls} tool calls failed"
        comment = "" if count else "# "
        yield f"{comment}[[reward]] # {failed}; a failure costs the call that requested it"
        yield f'{comment}use = "tool-failed"\n'


def _serve(survey: Survey, model: Path | None) -> Iterator[str]:
    yield "[serve]"
    if survey.longest:
        longest = f"longest call so far: {survey.longest} tokens"
        yield f"# max_model_len = {_rounded(survey.longest)} # {longest}; a limit saves memory"
    family = find_family(survey.models, model)
    comment = "how the model writes tool calls: vLLM's parser of its family"
    parser = family.tool_parser if family else "hermes"
    yield f'{"" if survey.offers_tools else "# "}tool_parser = "{parser}" # {comment}'
    if family is not None and family.thinking:
        off = json.dumps({family.thinking: False})
        sign = "# " if survey.thinks or not survey.offers_tools else ""
        yield f"# without thinking{', as in the traces' if not sign else ''}:"
        yield f"{sign}vllm = [\"--default-chat-template-kwargs\", '{off}']"


def policy_name(survey: Survey) -> str:
    """Return the policy that the gateway recorded, else a name for a new one."""
    return survey.policies[0] if survey.policies else "mine"


def _rounded(tokens: int) -> int:
    """Return twice the number of tokens, up to the next multiple of 512."""
    return -(-2 * tokens // 512) * 512


def _comment(text: str) -> str:
    """Return a text as part of a comment, which ends with its line."""
    return _toml(text)[1:-1]


def _toml(value: str | list[str]) -> str:
    """Return a string or a list of them as TOML: as JSON, which allows DEL in addition."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
