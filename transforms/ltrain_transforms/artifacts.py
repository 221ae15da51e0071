"""What a version of a policy is, and what a learner publishes; importing this is light."""

from typing import Literal

Artifact = Literal["weights", "adapter", "prompt"]
"""What a version is: full weights, a LoRA adapter of full weights, or a prompt."""

PublishedAs = Literal["adapter", "merged"]
"""What a learner publishes of a LoRA adapter: itself, or full weights with it."""

Publish = Literal["auto", "adapter", "merged"]
"""`PublishedAs`, or auto: what a trial of the policy server shows."""
