"""A run: its plan, lock, services, waves, journal and printed report."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.runs import report
    from ltrain_train.runs.check import check_recipe
    from ltrain_train.runs.environment import RunEnvironment
    from ltrain_train.runs.held_out import load_held_out
    from ltrain_train.runs.journal import (
        Completed,
        Dispatched,
        Evaluated,
        Finished,
        Group,
        Journal,
        PolicyJournal,
        PolicyScore,
        Published,
        Repeated,
        Served,
        Stopped,
        Trained,
        Wave,
        new_alarms,
        open_journal,
        read_journals,
        read_updates,
        record_alarms,
        update_alarms,
        wave_alarms,
    )
    from ltrain_train.runs.locking import hold_lock
    from ltrain_train.runs.plan import (
        Plan,
        environment_fields,
        find_chat_template,
        make_plan,
        missing_keys,
        plan_run,
        serve_arguments,
    )
    from ltrain_train.runs.report import (
        Phases,
        Progress,
        RolloutProgress,
        WaveRows,
        describe_places,
        describe_start,
        split_time,
        test_scores,
    )
    from ltrain_train.runs.resources import check_ways
    from ltrain_train.runs.retry import retry_load, retry_store, store_is_away
    from ltrain_train.runs.services import GATEWAY_START_TIMEOUT, Services, is_starting, responds
    from ltrain_train.runs.wave_summary import (
        WaveSummary,
        group_scores,
        outcome_score,
        task_scores,
    )
    from ltrain_train.runs.waves import WaveRun, settle

open_face(__name__)
