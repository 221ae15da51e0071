"""Policies on disk: versions, their weights and their precision."""

from ltrain_train.errors import BadModel, UnknownVersion
from ltrain_train.policy.artifact import (
    ADAPTER_CONFIG,
    ADAPTER_PARTS,
    ADAPTER_PREFIX,
    ADAPTER_WEIGHTS,
    adapted_modules,
    check_adapter,
    find_artifact,
    read_adapter_config,
)
from ltrain_train.policy.chat_template import (
    NO_TEMPLATE,
    NO_TOOLS,
    chat_template_option,
    has_chat_template,
    renders_tools,
)
from ltrain_train.policy.manifest import LINEAGE_FILES
from ltrain_train.policy.prompts import current_prompts, publish_prompt, read_prompt_version
from ltrain_train.policy.reference import Reference, find_reference, held_reference
from ltrain_train.policy.versions import Policies, require_empty
from ltrain_train.policy.weights import (
    VLLM_DTYPES,
    dead_zone,
    fast_dtype,
    read_config,
    read_shapes,
    resolve_dtype,
)

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_PARTS",
    "ADAPTER_PREFIX",
    "ADAPTER_WEIGHTS",
    "LINEAGE_FILES",
    "NO_TEMPLATE",
    "NO_TOOLS",
    "VLLM_DTYPES",
    "BadModel",
    "Policies",
    "Reference",
    "UnknownVersion",
    "adapted_modules",
    "chat_template_option",
    "check_adapter",
    "current_prompts",
    "dead_zone",
    "fast_dtype",
    "find_artifact",
    "find_reference",
    "has_chat_template",
    "held_reference",
    "publish_prompt",
    "read_adapter_config",
    "read_config",
    "read_prompt_version",
    "read_shapes",
    "renders_tools",
    "require_empty",
    "resolve_dtype",
]
