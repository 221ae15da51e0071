"""Runners of tests: a setting is a field of the program or of the runner's environment."""

from dataclasses import fields
from typing import Any

from ltrain_train.rollout import AgentProgram, Runner, RunnerEnvironment


def make_runner(**settings: Any) -> Runner:
    """Return a runner with these settings."""
    names = {each.name for each in fields(AgentProgram)} & settings.keys()
    program = AgentProgram(**{name: settings.pop(name) for name in names})
    return Runner(program, RunnerEnvironment(**settings))
