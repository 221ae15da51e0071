"""A dataset in other formats, one module each, and the push of such a folder to a hub."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.exports.conversion import BadExport, ExportOptions
    from ltrain_transforms.exports.formats import FORMATS, REASONS, export_dataset
    from ltrain_transforms.exports.hub import BadPush, push_folder
    from ltrain_transforms.exports.rollouts import read_rollouts

open_face(__name__)
