"""Policies on disk: versions, their weights and their precision."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.errors import BadModel, UnknownVersion
    from ltrain_train.policy.artifact import (
        ADAPTER_CONFIG,
        ADAPTER_PARTS,
        ADAPTER_PREFIX,
        ADAPTER_WEIGHTS,
        adapted_modules,
        check_adapter,
        check_artifact,
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
    from ltrain_train.policy.constraint import Constraint
    from ltrain_train.policy.deployments import Deployments
    from ltrain_train.policy.manifest import LINEAGE_FILES
    from ltrain_train.policy.prompts import current_prompts, read_prompt_version, register_prompt
    from ltrain_train.policy.reference import (
        Reference,
        find_reference,
        find_weights,
        held_reference,
    )
    from ltrain_train.policy.shared_weights import (
        Digests,
        GpuMemory,
        HostMemory,
        SharedTensor,
        SharedWeights,
        find_difference,
    )
    from ltrain_train.policy.sizes import (
        activation_size,
        adapter_size,
        cache_size,
        checkpoint_size,
        context_length,
        reference_size,
        training_size,
        weights_size,
    )
    from ltrain_train.policy.tinker import TinkerWeights, is_elsewhere, read_tinker_weights
    from ltrain_train.policy.versions import Policies, require_empty
    from ltrain_train.policy.weights import (
        VLLM_DTYPES,
        dead_zone,
        fast_dtype,
        read_config,
        read_shapes,
        resolve_dtype,
        text_config,
    )

open_face(__name__)
