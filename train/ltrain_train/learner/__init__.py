"""Training: rows in, optimizer steps with a backend, model directories and checkpoints out."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.learner.adapter import merge_adapter
    from ltrain_train.learner.backend import find_backend
    from ltrain_train.learner.checkpoint import check_files
    from ltrain_train.learner.client import LearnerClient, StepReport
    from ltrain_train.learner.masks import replay
    from ltrain_train.learner.objective import Objective
    from ltrain_train.learner.prefix_tree import build_prefix_tree, supports_prefix_tree
    from ltrain_train.learner.protocol import Job, Place
    from ltrain_train.learner.samples import Kind, pack_step, read_rows, split_into_steps
    from ltrain_train.learner.verl_backend.batch import make_batch
    from ltrain_train.learner.verl_backend.device import CPU
    from ltrain_train.learner.verl_backend.rows_attention import packed_attention
    from ltrain_train.learner.verl_backend.tree_attention import attention_inputs
    from ltrain_train.learner.weights import copy_model_files, largest_difference, write_weights

open_face(__name__)
