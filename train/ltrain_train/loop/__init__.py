"""`ltrain run`: waves of rollouts, built into datasets, learned from and served again."""

from ltrain_train.loop import command, policy_commands
from ltrain_train.loop.command import hold_lock
from ltrain_train.loop.generation import TRAIN_SAMPLING
from ltrain_train.loop.health import responds
from ltrain_train.loop.journal import (
    Completed,
    Dispatched,
    Evaluated,
    Finished,
    Journal,
    Repeated,
    Trained,
    Wave,
    open_journal,
)
from ltrain_train.loop.policy_commands import parse_version
from ltrain_train.loop.retry import retry_publish, retry_store
from ltrain_train.loop.run import Plan, make_runner, serve_arguments
from ltrain_train.loop.services import Services
from ltrain_train.loop.wave_rows import WaveRows
from ltrain_train.loop.wave_summary import (
    CountedRollout,
    WaveSummary,
    outcome_score,
    summarize_groups,
    task_scores,
)

__all__ = [
    "TRAIN_SAMPLING",
    "Completed",
    "CountedRollout",
    "Dispatched",
    "Evaluated",
    "Finished",
    "Journal",
    "Plan",
    "Repeated",
    "Services",
    "Trained",
    "Wave",
    "WaveRows",
    "WaveSummary",
    "command",
    "hold_lock",
    "make_runner",
    "open_journal",
    "outcome_score",
    "parse_version",
    "policy_commands",
    "responds",
    "retry_publish",
    "retry_store",
    "serve_arguments",
    "summarize_groups",
    "task_scores",
]
