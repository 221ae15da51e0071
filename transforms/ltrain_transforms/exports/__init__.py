"""A dataset in other formats: tasks, chats, preference pairs, rendered rows, verl's prompts."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.exports.conversion import BadExport, ExportOptions
    from ltrain_transforms.exports.formats import FORMATS, REASONS, export_dataset
    from ltrain_transforms.exports.rollouts import read_rollouts

open_face(__name__)
