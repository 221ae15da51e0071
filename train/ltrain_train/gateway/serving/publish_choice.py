"""The choice between adapters and merged weights, which the gateway makes for the learners."""

from dataclasses import dataclass

from ltrain_transforms.artifacts import PublishedAs


@dataclass(frozen=True, slots=True)
class PublishChoice:
    """The form in which learners publish LoRA adapters, and the reason."""

    artifact: PublishedAs
    reason: str

    def describe(self) -> str:
        """Return the choice and its reason."""
        return f"publish = {self.artifact}: {self.reason}"
