"""The artifacts of a policy's versions, and the artifact that a learner publishes of an adapter."""

from typing import Literal

Artifact = Literal["weights", "adapter", "prompt"]
"""The content of a version: full weights, a LoRA adapter of full weights, or a prompt."""

PublishedAs = Literal["adapter", "merged"]
"""The artifact that a learner publishes of a LoRA adapter: itself, or full weights with it."""

Engine = Literal["vllm", "tinker"]
"""The server that samples a policy: a vLLM, or a server of the Tinker API."""

Publish = Literal["auto", "adapter", "merged"]
"""`PublishedAs`, or auto: the trial of the policy server decides."""
