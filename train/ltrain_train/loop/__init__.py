"""`ltrain run`: waves of rollouts, built into datasets, learned from and served again."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.loop import command, policy_commands
    from ltrain_train.loop.command import hold_lock
    from ltrain_train.loop.generation import imposed_sampling
    from ltrain_train.loop.held_out import load_held_out
    from ltrain_train.loop.journal import (
        Completed,
        Dispatched,
        Evaluated,
        Finished,
        Journal,
        PolicyScore,
        Repeated,
        Served,
        Trained,
        Wave,
        open_journal,
    )
    from ltrain_train.loop.learners import PolicyLearner, require_rank
    from ltrain_train.loop.once import (
        build_dataset,
        open_dataset,
        open_updater,
        prune,
        read_lineage,
        run_folder,
    )
    from ltrain_train.loop.plan import Plan, find_chat_template, serve_arguments
    from ltrain_train.loop.policy_commands import parse_version
    from ltrain_train.loop.publication import (
        TrainedVersion,
        describe_serving,
        find_gateway,
        publish_draft,
        publishes_adapters,
    )
    from ltrain_train.loop.report import WaveRows, count_left_out, split_time, test_scores
    from ltrain_train.loop.retry import retry_publish, retry_store
    from ltrain_train.loop.run import make_runner
    from ltrain_train.loop.services import Services, responds
    from ltrain_train.loop.training_rows import select_rows
    from ltrain_train.loop.wave_summary import (
        CountedRollout,
        WaveSummary,
        outcome_score,
        summarize_groups,
        task_scores,
    )

open_face(__name__)
