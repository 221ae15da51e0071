"""`ltrain apo`: prompts are criticised, edited and selected over the same rollouts and rewards."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.prompts.command import optimize_prompt

open_face(__name__)
