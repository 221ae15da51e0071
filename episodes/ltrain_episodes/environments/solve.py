"""The agent and the reward of rollouts whose recipe names an environment."""

import json
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from ltrain_episodes.environments.task_environment import (
    HELD_OUT,
    TaskEnvironment,
    open_environment,
)
from ltrain_instrument.identity import ENVIRONMENT_VARIABLE


async def attempt(task: Mapping[str, Any], llm: Any) -> dict[str, Any]:
    """Play an attempt of a task, and return its scores: the agent of the rollouts."""
    own = task["environment"]
    environment = _environment(os.environ[ENVIRONMENT_VARIABLE], held_out=bool(own.get(HELD_OUT)))
    scored = await environment.attempt({**own, **task}, llm)
    return scored.as_result()


def scores(task: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of an attempt: `reward`, each reward and each metric by its name."""
    return {**result["metrics"], **result["rewards"], "reward": result["reward"]}


@cache
def _environment(described: str, *, held_out: bool) -> TaskEnvironment:
    """Return the environment of this process, which serves all its attempts."""
    named = json.loads(described)
    more = named["held_out_options"] if held_out else {}
    return open_environment(named["environment"], {**named["options"], **more})
