"""Properties of calls that a recipe may allow in mode `train`, although they make calls
untrainable.
"""

from enum import StrEnum
from typing import Literal


class Allow(StrEnum):
    CONSTRAINED = "constrained"
    """Decoding that forbids or favours tokens: its probabilities cannot be recomputed."""
    CHOICES = "choices"
    """Several responses to one call: only the one that a later prompt continues can be trained."""
    TEMPLATE = "template"
    """A chat template, or a response prefix, that the agent sets."""
    STOPPING = "stopping"
    """Stop tokens that the agent adds to the model's own or removes from them."""
    MULTIMODAL = "multimodal"
    """Images, audio and video: the prompt's token ids do not contain them."""
    EXTRA = "extra"
    """Request fields that ltrain does not know."""


UnsupportedTools = Literal["drop", "refuse"]
"""The treatment of tools that only a provider's servers run: the values of
`serve.unsupported_tools` of a recipe."""

ConstrainedCalls = Literal["masked", "relaxed", "refused"]
"""How calls with structured output are trained: the values of `train.constrained` of a recipe."""
