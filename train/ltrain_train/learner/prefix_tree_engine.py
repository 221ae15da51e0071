"""verl's FSDP engine that computes the rows of a micro-batch as one prefix tree.

It is in verl's engine registry; `VERL_ENGINE_VENDOR=ltrain` selects it. Only the model's inputs and
the use of its logits differ from verl's engine.
"""

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from verl.utils import tensordict_utils
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead

from ltrain_train.learner.prefix_tree import build_prefix_tree

VENDOR = "ltrain"


@EngineRegistry.register(
    model_type="language_model", backend=["fsdp2"], device=["cuda"], vendor=VENDOR
)
class TreeEngine(FSDPEngineWithLMHead):
    """Accepts batches whose field `scored` marks the tokens that need a log-probability."""

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the tree as model inputs, and where in it the logits of each scored token are."""
        ids = micro_batch["input_ids"]
        rows = [row.tolist() for row in ids.unbind()]
        temperature = micro_batch["temperature"]
        tree = build_prefix_tree([row[:-1] for row in rows], temperature.tolist())
        device = ids.device
        # position i predicts token i + 1: the last of a row predicts nothing and has no node
        nodes = torch.tensor([node for path in tree.paths for node in [*path, -1]], device=device)
        positions = micro_batch["scored"].values().roll(-1).bool().nonzero()[:, 0]
        kept_nodes, logits_of = torch.unique(nodes[positions], return_inverse=True)
        per_token = temperature.to(device).repeat_interleave(ids.offsets().diff())
        inputs = {
            "input_ids": torch.tensor([tree.tokens], device=device),
            "position_ids": torch.tensor([tree.depths], device=device),
            "attention_mask": tree.mask().to(device)[None, None],
            "logits_to_keep": kept_nodes,
        }
        output_args = {
            "positions": positions,
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
