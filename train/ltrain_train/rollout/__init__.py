"""Rollouts: tasks planned, attempts made and judged, spans and rewards recorded."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.rollout.attempt_log import AttemptLog, end_of, read_entry
    from ltrain_train.rollout.environment_tasks import EnvironmentFailed, list_tasks
    from ltrain_train.rollout.executor import RunnerEnvironment, rollout_logs
    from ltrain_train.rollout.failures import describe_failures
    from ltrain_train.rollout.other_runners import check_leases
    from ltrain_train.rollout.program import AgentProgram
    from ltrain_train.rollout.rewards import (
        ChatModel,
        EndpointAway,
        RewardFailed,
        RewardLimits,
        StartCall,
    )
    from ltrain_train.rollout.run_tasks import TaskRun, run_tasks
    from ltrain_train.rollout.runner import Runner
    from ltrain_train.rollout.runs import last_and_next_name
    from ltrain_train.rollout.score import ScoreReport, find_judge, score_stored_run
    from ltrain_train.rollout.tasks import BadTasks, Task, load_tasks
    from ltrain_train.rollout.trial import (
        Trial,
        check_sandboxes,
        import_program,
        score_results,
    )

open_face(__name__)
