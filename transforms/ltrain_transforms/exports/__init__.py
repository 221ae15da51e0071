"""A dataset in other formats: tasks, chats, preference pairs, rendered rows, verl's prompts."""

from ltrain_transforms.exports.conversion import BadExport, ExportOptions
from ltrain_transforms.exports.formats import FORMATS, REASONS, export_dataset
from ltrain_transforms.exports.rendered import load_tokenizer, render_answer
from ltrain_transforms.exports.rollouts import read_rollouts

__all__ = [
    "FORMATS",
    "REASONS",
    "BadExport",
    "ExportOptions",
    "export_dataset",
    "load_tokenizer",
    "read_rollouts",
    "render_answer",
]
