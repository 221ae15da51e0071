"""The fixtures of tests/train/rollout: workers are tested through a runner."""

from tests.train.rollout.conftest import held_lock, home, outside, runner, task

__all__ = ["held_lock", "home", "outside", "runner", "task"]
