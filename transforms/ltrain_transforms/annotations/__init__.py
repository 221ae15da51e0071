"""Evaluations and advantages as annotations on other platforms: `ltrain reward --push`."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.annotations.push import push_annotations

open_face(__name__)
