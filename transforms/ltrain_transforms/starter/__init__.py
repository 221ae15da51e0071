"""`ltrain init`: a recipe, an agent and a reward function to start from, from stored traces."""

from ltrain_transforms.starter.files import write_starter
from ltrain_transforms.starter.survey import Survey, take_survey

__all__ = ["Survey", "take_survey", "write_starter"]
