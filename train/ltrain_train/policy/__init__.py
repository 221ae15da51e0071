"""Policies on disk: versions, their weights and their precision."""

from ltrain_train.errors import BadModel, UnknownVersion
from ltrain_train.policy.chat_template import NO_TOOLS, chat_template_option, renders_tools
from ltrain_train.policy.versions import LINEAGE_FILES, Policies
from ltrain_train.policy.weights import (
    VLLM_DTYPES,
    dead_zone,
    fast_dtype,
    read_shapes,
    resolve_dtype,
)

__all__ = [
    "LINEAGE_FILES",
    "NO_TOOLS",
    "VLLM_DTYPES",
    "BadModel",
    "Policies",
    "UnknownVersion",
    "chat_template_option",
    "dead_zone",
    "fast_dtype",
    "read_shapes",
    "renders_tools",
    "resolve_dtype",
]
