"""verl's engines with a value head: of rows as they are, and of rows as a prefix tree.

The head is a linear layer on the last hidden state. It starts at zero, so that every value is 0 and
every rank begins with the same critic. With an adapter, the head is trained beside it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import distributed
from verl.trainer.ppo.core_algos import compute_value_loss
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead

from ltrain_train.learner.objective import Objective
from ltrain_train.learner.verl_backend import rows_engine, tree_engine
from ltrain_train.learner.verl_backend.batch import OLD_VALUES, RETURNS
from ltrain_train.learner.verl_backend.rows_engine import BatchMasks

MODEL_TYPE = "value_model"
HEAD = "score"
"""The head's name in transformers' models for the classification of tokens."""
HEAD_FILE = "value_head.safetensors"
"""The head in the checkpoint of a critic with an adapter, which verl saves without it."""
OLD_HEAD_FILE = "value_head.pt"
"""The head in the checkpoints of older versions of ltrain."""


class ValueModel:
    """Loads the base with a value head, in place of verl's loader, which requires flash attention.

    The classes that inherit from it are engines of verl.
    """

    def _build_module(self: Any) -> Any:
        config = self.model_config.hf_config
        config.num_labels, config.classifier_dropout = 1, 0.0
        # verl chooses transformers' class by the architecture
        config.architectures = ["ForTokenClassification"]
        self.model_config.model_type = "language_model"
        module = super()._build_module()  # type: ignore[misc]
        for parameter in getattr(module, HEAD).parameters():
            torch.nn.init.zeros_(parameter)
        return module

    def _build_lora_module(self: Any, module: Any) -> Any:
        # not verl's: its adapter is of a model that generates
        module.enable_input_require_grads()
        adapter = LoraConfig(
            r=self.model_config.lora_rank,
            lora_alpha=self.model_config.lora_alpha,
            target_modules=self.model_config.target_modules,
            exclude_modules=[HEAD],
        )
        adapted = get_peft_model(module, adapter)
        for parameter in head_of(adapted).parameters():
            parameter.requires_grad_(True)
        return adapted


@EngineRegistry.register(
    model_type=MODEL_TYPE, backend=["fsdp2"], device=["cuda"], vendor=rows_engine.VENDOR
)
class ValueEngine(rows_engine.PackedRows, ValueModel, FSDPEngineWithValueHead):
    """Computes the rows of a micro-batch as they are."""


@EngineRegistry.register(
    model_type=MODEL_TYPE, backend=["fsdp2"], device=["cuda"], vendor=tree_engine.VENDOR
)
class ValueTreeEngine(ValueModel, tree_engine.TreeEngine):
    """Computes the rows of a micro-batch as one prefix tree."""

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the inputs of the policy's engine; the head computes every node."""
        inputs, output_args = super().prepare_model_inputs(micro_batch)
        output_args["nodes"] = inputs.pop("logits_to_keep")
        return inputs, output_args

    def _masks(self, micro_batch: Any) -> BatchMasks:
        """Replay no grammar: a value is of a state, whatever ids are allowed next."""
        return BatchMasks.free(micro_batch)

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """Return the values, at the positions that predict scored tokens; 0 elsewhere."""
        offsets = micro_batch["input_ids"].offsets()
        values = output.logits[0, output_args["nodes"], 0].float()[output_args["logits_of"]]
        flat = torch.zeros(int(offsets[-1]), device=values.device)
        flat = flat.index_put((output_args["positions"],), values)
        return {"values": torch.nested.nested_tensor_from_jagged(flat, offsets)}


def head_of(module: Any) -> Any:
    """Return the value head of a model, with or without an adapter."""
    [head] = [each for name, each in module.named_modules() if name.split(".")[-1] == HEAD]
    return head


def save_head(module: Any, directory: Path) -> None:
    """Write the value head; every rank takes part, and the first one writes."""
    state = {name: x.full_tensor().cpu() for name, x in head_of(module).state_dict().items()}
    if distributed.get_rank() == 0:
        save_file(state, directory / HEAD_FILE)
    distributed.barrier()


def load_head(module: Any, directory: Path) -> None:
    """Load the value head that `save_head` wrote."""
    file, old = directory / HEAD_FILE, directory / OLD_HEAD_FILE
    saved = load_file(file) if file.is_file() else torch.load(old, weights_only=True)
    for name, tensor in head_of(module).state_dict().items():
        whole = saved[name].to(tensor.device)
        tensor.copy_(
            distributed.tensor.distribute_tensor(whole, tensor.device_mesh, tensor.placements)
        )


def value_loss(
    model_output: Mapping[str, torch.Tensor], data: Any, dp_group: object = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return one micro-batch's part of the weighted mean of verl's clipped value loss.

    The mean is over all tokens of the optimizer step, as that of the policy loss.
    """
    objective: Objective = data["objective"]
    if objective.critic is None:
        raise ValueError("The objective has no critic.")
    mask_N = data["loss_mask"].values().bool()
    # position i has the value of the state before token i + 1
    value_N = model_output["values"].values().float().roll(1)
    loss, clipped = compute_value_loss(
        value_N[mask_N],
        data[RETURNS].values()[mask_N],
        data[OLD_VALUES].values()[mask_N],
        data["weights"].values()[mask_N],
        objective.critic.value_clip,
        dp_size=data["dp_size"],
        batch_num_tokens=data["weight_sum"],
    )
    share = data["dp_size"] * float(data["weights"].values()[mask_N].sum()) / data["weight_sum"]
    metric = Metric(value=float(clipped) * share, aggregation=AggregationType.SUM)
    return loss, {"value_clip_fraction": metric}
