"""verl's FSDP engine that computes the rows of a micro-batch as one prefix tree.

It is in verl's engine registry; `VERL_ENGINE_VENDOR=ltrain` selects it. Only the model's inputs
and the use of its logits differ from verl's engine; `prefix_tree_attention` has the attention.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from verl.utils import tensordict_utils
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead

from ltrain_train.learner.masks import apply_masks
from ltrain_train.learner.prefix_tree import build_prefix_tree
from ltrain_train.learner.verl_backend.rows_engine import BatchMasks
from ltrain_train.learner.verl_backend.tree_attention import FLEX_BLOCK, attention_inputs

VENDOR = "ltrain"


@EngineRegistry.register(
    model_type="language_model", backend=["fsdp2"], device=["cuda"], vendor=VENDOR
)
class TreeEngine(FSDPEngineWithLMHead):
    """Accepts batches whose field `scored` marks the tokens that need a log-probability."""

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the tree as model inputs, and where in it the logits of each scored token are."""
        ids, temperature = micro_batch["input_ids"], micro_batch["temperature"]
        device, offsets = ids.device, ids.offsets().cpu().numpy()
        tokens = ids.values().cpu().numpy().astype(np.uint32)
        rows = [tokens[start : end - 1] for start, end in pairwise(offsets)]
        tree = build_prefix_tree(rows, temperature.tolist())
        if device.type != "cpu":
            tree = tree.pad(FLEX_BLOCK)
        # position i predicts token i + 1: the last of a row predicts nothing and has no node
        nodes = torch.from_numpy(np.concatenate([x for path in tree.paths for x in (path, [-1])]))
        positions = micro_batch["scored"].values().roll(-1).bool().nonzero()[:, 0]
        masks = self._masks(micro_batch)
        # samples that share a node share its logits, unless their masks of the next token differ
        pairs = torch.stack([nodes.to(device)[positions], masks.of_token_T[positions + 1]])
        (kept_nodes, kept_masks), logits_of = torch.unique(pairs, dim=1, return_inverse=True)
        per_token = temperature.to(device).repeat_interleave(ids.offsets().diff())
        inputs = {
            "input_ids": torch.from_numpy(tree.tokens).to(device)[None],
            "position_ids": torch.from_numpy(tree.depths).to(device)[None],
            "logits_to_keep": kept_nodes,
            **attention_inputs(
                torch.from_numpy(tree.ends).to(device),
                torch.from_numpy(tree.depths).to(device),
                self.module.config,
            ),
        }
        output_args = {
            "positions": positions,
            "mask": kept_masks,
            "words": masks.words_MW,
            "logits_of": logits_of,
            "labels": ids.values()[positions + 1],
            "temperature": torch.ones(len(kept_nodes), device=device).scatter(
                0, logits_of, per_token[positions]
            ),
        }
        return inputs, output_args

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """Return what verl's engine does: log-probabilities and, if asked for, entropies.

        They are 0 for tokens that are not scored.
        """
        logits = output.logits[0].float() / output_args["temperature"][:, None]
        apply_masks(logits, output_args["mask"], output_args["words"])
        logits_of, labels = output_args["logits_of"], output_args["labels"]
        scored = logits[logits_of, labels] - logits.logsumexp(-1)[logits_of]
        values = {"log_probs": scored}
        if tensordict_utils.get_non_tensor_data(micro_batch, "calculate_entropy", False):
            values["entropy"] = self._entropy(logits)[logits_of]
        offsets = micro_batch["input_ids"].offsets()
        outputs = {}
        for name, x in values.items():
            flat = torch.zeros(int(offsets[-1]), device=x.device)
            flat = flat.index_put((output_args["positions"],), x)
            outputs[name] = torch.nested.nested_tensor_from_jagged(flat, offsets)
        return outputs

    def _masks(self, micro_batch: Any) -> BatchMasks:
        return BatchMasks.from_batch(micro_batch, self.model_config)

    def _entropy(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the entropy [node] of the distributions [node, token], by verl's options."""
        config = self.engine_config
        entropy = self.compute_entropy_from_logits
        if config.entropy_from_logits_with_chunking:
            entropy = partial(entropy, chunk_size=config.entropy_from_logits_chunk_size)
        if config.entropy_checkpointing:
            result: torch.Tensor = checkpoint(entropy, logits, use_reentrant=False)
            return result
        result = entropy(logits)
        return result
