"""Updates: rows are selected from stored traces, trained on, and become the next version."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.updates.data_report import DataReport, count_left_out
    from ltrain_train.updates.learners import LearnerProcess, Learners, PolicyLearner, require_rank
    from ltrain_train.updates.stored_traces import (
        OfflineOptions,
        OfflineRun,
        TrainingInput,
        build_dataset,
        open_dataset,
        open_updater,
        open_updaters,
        prune,
        read_lineage,
        read_store,
        remove_datasets,
        require_no_trial,
        run_folder,
        select_input,
        train_on,
    )
    from ltrain_train.updates.training_report import TrainingReport, nothing_to_train
    from ltrain_train.updates.training_rows import IN_OUTDATED_GROUP, RowSelection, select_rows
    from ltrain_train.updates.update import Update, Updater
    from ltrain_train.updates.verification import (
        check_dataset,
        check_removed,
        check_version,
        fault,
        verify_version,
    )

open_face(__name__)
