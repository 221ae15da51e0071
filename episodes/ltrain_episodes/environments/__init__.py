"""Environments of other packages as rollouts: their tasks, their episodes and their rewards.

`rollout.environment` of a recipe names one. It runs in the processes of the agent, whose Python
(`rollout.python`) has the package.
"""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_episodes.environments.skyrl_text_env import text_env
    from ltrain_episodes.environments.solve import attempt, scores
    from ltrain_episodes.environments.task_environment import (
        Scores,
        TaskEnvironment,
        open_environment,
    )

open_face(__name__)
