"""A dataset in other formats: tasks, chats, preference pairs, rendered rows, verl's prompts."""

from ltrain_transforms.exports import formats
from ltrain_transforms.exports.conversion import ExportOptions
from ltrain_transforms.exports.formats import export_dataset

__all__ = ["ExportOptions", "export_dataset", "formats"]
