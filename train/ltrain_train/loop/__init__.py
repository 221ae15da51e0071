"""`ltrain run`: waves of rollouts, built into datasets, learned from and served again."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.loop import command

open_face(__name__)
