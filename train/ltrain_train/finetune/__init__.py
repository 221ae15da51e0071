"""`ltrain sft` and `ltrain dpo`: train a policy on stored chats, and publish the next version."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.finetune import command

open_face(__name__)
