"""What a recipe may allow in mode `train`, although it makes calls untrainable."""

from enum import StrEnum


class Allow(StrEnum):
    CONSTRAINED = "constrained"
    """Decoding that forbids or favours tokens: its probabilities cannot be recomputed."""
    CHOICES = "choices"
    """Several answers to one call: no later prompt says which of them the agent went on with."""
    TEMPLATE = "template"
    """A chat template, or a beginning of the answer, of the agent's own."""
    STOPPING = "stopping"
    """Tokens other than the model's own that end an answer, or that do not."""
    MULTIMODAL = "multimodal"
    """Images, audio and video: a prompt's token ids do not hold them."""
    EXTRA = "extra"
    """Fields of which nothing is known here."""
