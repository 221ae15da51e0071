"""verl's FSDP engine for packed rows, without padding, with the masks of constrained tokens.

`VERL_ENGINE_VENDOR=ltrain-rows` selects it, for models outside the prefix tree's list. Of a model
that cannot keep the rows of a pack apart, a micro-batch has one row.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from verl.utils import tensordict_utils
from verl.utils.ulysses import ulysses_pad_and_slice_inputs
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead

from ltrain_train.learner.masks import apply_masks, replay
from ltrain_train.learner.verl_backend.rows_attention import ATTENTION

VENDOR = "ltrain-rows"


@dataclass(frozen=True, slots=True)
class BatchMasks:
    """The masks of the T tokens of a micro-batch, on its device."""

    of_token_T: torch.Tensor
    """For each token the index of its mask, or -1."""
    words_MW: torch.Tensor
    """The distinct masks, packed."""

    @classmethod
    def free(cls, micro_batch: Any) -> Self:
        """Allow every id."""
        ids = micro_batch["input_ids"]
        of_token = torch.full((int(ids.offsets()[-1]),), -1, device=ids.device)
        return cls(of_token, torch.empty(0, 1, dtype=torch.int32, device=ids.device))

    @classmethod
    def from_batch(cls, micro_batch: Any, model: Any) -> Self:
        """Replay the constraints of a micro-batch; without one every id is allowed."""
        if "constraint" not in micro_batch.keys():  # noqa: SIM118 - a TensorDict iterates over rows
            return cls.free(micro_batch)
        device = micro_batch["input_ids"].device
        tokens, of_token, starts = (
            micro_batch[name].values().cpu().numpy()
            for name in ("input_ids", "constraint", "call_starts")
        )
        constraints = tensordict_utils.get_non_tensor_data(micro_batch, "constraints", [])
        masks = replay(Path(model.local_path), tokens, of_token, starts, constraints)
        return cls(torch.from_numpy(masks.of_token_T).to(device), masks.words_MW.to(device))


class PackedRows:
    """Adds the lengths of the rows to the inputs of the model, where its attention needs them.

    The classes that inherit from it are engines of verl.
    """

    def prepare_model_inputs(self: Any, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the inputs of verl's engine: the tokens of all rows, one row after the other."""
        inputs, output_args = super().prepare_model_inputs(micro_batch)  # type: ignore[misc]
        if self.module.config._attn_implementation == ATTENTION:
            lengths = micro_batch["input_ids"].offsets().diff().tolist()
            # what makes the tokens a multiple of the ranks is a row of its own
            inputs["row_lengths"] = [*lengths, *filter(None, [output_args["pad_size"]])]
        return inputs, output_args


@EngineRegistry.register(
    model_type="language_model", backend=["fsdp2"], device=["cuda"], vendor=VENDOR
)
class RowsEngine(PackedRows, FSDPEngineWithLMHead):
    """Masks the logits before verl's engine uses them."""

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """Return what verl's engine does, of the masked logits."""
        masks = BatchMasks.from_batch(micro_batch, self.model_config)
        # position i predicts token i + 1; the last position of a row predicts nothing
        mask_of, ranks = masks.of_token_T.roll(-1)[None], self.ulysses_sequence_parallel_size
        if ranks > 1:
            mask_of, _, _ = ulysses_pad_and_slice_inputs(mask_of, None, ranks, pad_value=-1)
        apply_masks(output.logits[0], mask_of[0], masks.words_MW)
        outputs: dict[str, torch.Tensor] = super().prepare_model_outputs(
            output, output_args, micro_batch, logits_processor_func
        )
        return outputs
