"""Training: rows in, optimizer steps with verl, model directories and checkpoints out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ltrain_train.learner.client import LearnerClient, StepReport
from ltrain_train.learner.device import CPU
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.prefix_tree import build_prefix_tree, supports_prefix_tree
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.samples import Kind, pack_step, read_rows, split_into_steps

if TYPE_CHECKING:
    from ltrain_train.learner.adapter import merge_adapter
    from ltrain_train.learner.batch import make_batch
    from ltrain_train.learner.prefix_tree.attention import attention_inputs
    from ltrain_train.learner.weights import copy_model_files, write_weights

__all__ = [
    "CPU",
    "Job",
    "Kind",
    "LearnerClient",
    "Objective",
    "StepReport",
    "attention_inputs",
    "build_prefix_tree",
    "copy_model_files",
    "make_batch",
    "merge_adapter",
    "pack_step",
    "read_rows",
    "split_into_steps",
    "supports_prefix_tree",
    "write_weights",
]

MODULES = {
    "attention_inputs": "prefix_tree.attention",
    "copy_model_files": "weights",
    "make_batch": "batch",
    "merge_adapter": "adapter",
    "write_weights": "weights",
}
"""The modules of functions that import torch, which takes seconds."""


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
