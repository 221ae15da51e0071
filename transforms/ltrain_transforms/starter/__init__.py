"""`ltrain init`: a first recipe, agent and reward function, from stored traces."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.starter.files import write_starter
    from ltrain_transforms.starter.model_family import find_family
    from ltrain_transforms.starter.survey import Survey, take_survey

open_face(__name__)
