"""Rollouts: tasks planned, attempts made and judged, spans and rewards recorded."""

from ltrain_train.rollout.run_tasks import RolloutOptions, run_tasks
from ltrain_train.rollout.runner import Runner, finished_rollouts
from ltrain_train.rollout.runs import last_and_next_name
from ltrain_train.rollout.tasks import Task, load_tasks

__all__ = [
    "RolloutOptions",
    "Runner",
    "Task",
    "finished_rollouts",
    "last_and_next_name",
    "load_tasks",
    "run_tasks",
]
