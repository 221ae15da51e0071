"""`ltrain run`: waves of rollouts, built into datasets, learned from and served again."""

from ltrain_train.loop import command, policy_commands
from ltrain_train.loop.command import hold_lock
from ltrain_train.loop.health import responds
from ltrain_train.loop.journal import Journal
from ltrain_train.loop.plan import Plan, serve_arguments
from ltrain_train.loop.policy_commands import parse_version
from ltrain_train.loop.retry import retry_publish, retry_store
from ltrain_train.loop.services import Services
from ltrain_train.loop.wave_summary import CountedRollout, WaveSummary, outcome_score

__all__ = [
    "CountedRollout",
    "Journal",
    "Plan",
    "Services",
    "WaveSummary",
    "command",
    "hold_lock",
    "outcome_score",
    "parse_version",
    "policy_commands",
    "responds",
    "retry_publish",
    "retry_store",
    "serve_arguments",
]
