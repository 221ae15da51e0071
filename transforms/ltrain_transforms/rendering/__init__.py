"""Texts -> tokens: a chat template renders the calls of traces that have no token ids."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.rendering.calls import BIAS, READ, REASONS, RENDERED, render_calls
    from ltrain_transforms.rendering.chat import ChatMessage, NotText, read_tools, to_chat
    from ltrain_transforms.rendering.served_policy import (
        ServedPolicy,
        find_served,
        sampled_version,
    )
    from ltrain_transforms.rendering.template import (
        BadTokenizer,
        TokenPair,
        load_tokenizer,
        render_answer,
    )

open_face(__name__)
