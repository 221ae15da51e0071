"""Further options of verl, declared without importing it: recipes are checked before Ray starts.

Every option of the configurations that the learner makes for verl is declared here: as a key of a
section, or in the section's `fixed` with the reason why a recipe cannot set it. The learner's tests
compare the names and the types with verl's.
"""

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from ltrain_transforms.recipe.section import Section

OWN = "ltrain sets it"
UNUSED = "the learner does not read it"


def _key(name: str, *options: str) -> dict[str, str]:
    """Return why a recipe cannot set the options: it has a key for them."""
    return dict.fromkeys(options, f"set train.{name} instead")


class VerlSection(Section):
    model_config = ConfigDict(strict=True)

    fixed: ClassVar[dict[str, str]]
    """verl's options that a recipe cannot set, and why."""

    @model_validator(mode="before")
    @classmethod
    def _settable(cls, options: Any) -> Any:
        for name in options if isinstance(options, dict) else ():
            if name in cls.fixed:
                raise ValueError(f"verl's option '{name}' cannot be set here: {cls.fixed[name]}.")
        return options

    def options(self) -> dict[str, Any]:
        """Return the options that the recipe sets, by verl's names."""
        return self.model_dump(exclude_none=True)


class VerlPolicyLoss(VerlSection):
    """Options of single losses: verl's `actor.policy_loss`. An absent one has verl's default."""

    fixed: ClassVar = {
        **_key("loss", "loss_mode"),
        **_key("correction", "rollout_correction"),
        "dro_beta": "it belongs to the loss dro, which a recipe cannot name",
    }

    clip_cov_ratio: float | None = None
    """Share of the tokens that `clip_cov` leaves out."""
    clip_cov_lb: float | None = None
    """Lower bound of the covariance of these tokens."""
    clip_cov_ub: float | None = None
    """Upper bound of the covariance of these tokens."""
    kl_cov_ratio: float | None = None
    """Share of the tokens that `kl_cov` penalises."""
    ppo_kl_coef: float | None = None
    """Factor of the penalty of `kl_cov`."""


class VerlActor(VerlSection):
    """Options of the losses: verl's `actor`. An absent one has verl's default."""

    fixed: ClassVar = {
        **_key("clip_ratio_low", "clip_ratio_low", "clip_ratio"),
        **_key("clip_ratio_high", "clip_ratio_high"),
        **_key("entropy_coefficient", "entropy_coeff"),
        **_key("kl_coefficient", "kl_loss_coef", "use_kl_loss"),
        **_key("kl_estimator", "kl_loss_type"),
        **_key("loss_weighting", "loss_agg_mode", "loss_scale_factor"),
        **_key("gradient_clip", "grad_clip"),
        **_key("steps_per_wave", "ppo_epochs", "ppo_mini_batch_size"),
        **_key("tokens_per_micro_batch", "ppo_max_token_len_per_gpu"),
        **_key("tokens_per_micro_batch", "ppo_infer_max_token_len_per_gpu"),
        **_key("verl.optimizer", "optim"),
        **_key("verl.engine", "engine", "fsdp_config", "use_torch_compile"),
        **_key("verl.engine", "entropy_checkpointing", "entropy_from_logits_with_chunking"),
        **_key("verl.engine", "entropy_from_logits_chunk_size"),
        **dict.fromkeys(
            (
                "calculate_entropy",
                "checkpoint",
                "global_batch_info",
                "model_config",
                "ppo_infer_micro_batch_size_per_gpu",
                "ppo_micro_batch_size",
                "ppo_micro_batch_size_per_gpu",
                "rollout_n",
                "strategy",
                "use_dynamic_bsz",
                "use_remove_padding",
                "use_rollout_log_probs",
            ),
            OWN,
        ),
        **dict.fromkeys(
            (
                "calculate_sum_pi_squared",
                "data_loader_seed",
                "freeze_vision_tower",
                "pad_to_length",
                "profiler",
                "qat",
                "shuffle",
                "ulysses_sequence_parallel_size",
                "use_fused_kernels",
                "use_prefix_grouper",
            ),
            UNUSED,
        ),
    }

    clip_ratio_c: float | None = None
    """Largest ratio of a token with a negative advantage in `vanilla`: arXiv 1912.09729."""
    tau_pos: float | None = None
    """Temperature of the gate of `sapo` for positive advantages."""
    tau_neg: float | None = None
    """Temperature of the gate of `sapo` for negative advantages."""
    policy_loss: VerlPolicyLoss = VerlPolicyLoss()


class VerlOptimizer(VerlSection):
    """Options of the optimizer: verl's `optim`. An absent one has verl's default."""

    fixed: ClassVar = {
        **_key("learning_rate", "lr"),
        **_key("gradient_clip", "clip_grad", "grad_clip"),
        **_key("warmup_updates", "lr_warmup_steps", "lr_warmup_steps_ratio"),
        **_key("decay", "lr_scheduler_type", "warmup_style"),
        **_key("updates", "total_training_steps"),
        **dict.fromkeys(("min_lr_ratio", "num_cycles", "zero_indexed_step"), UNUSED),
    }

    optimizer: str | None = None
    """Class of the optimizer; default: AdamW."""
    optimizer_impl: str | None = None
    """Module of the class; default: torch.optim."""
    weight_decay: float | None = None
    """Weight decay; default: 0."""
    betas: Annotated[tuple[float, float] | None, Field(strict=False)] = None
    """Decay rates of Adam's two moments; default: 0.9 and 0.999."""
    override_optimizer_config: dict[str, Any] | None = None
    """Further arguments of the class."""


class VerlEngine(VerlSection):
    """Options of the engine: verl's `fsdp_config`. An absent one has verl's default."""

    fixed: ClassVar = {
        **_key("dtype", "dtype", "mixed_precision"),
        **_key("tokens_per_micro_batch", "max_token_len_per_gpu", "infer_max_token_len_per_gpu"),
        **dict.fromkeys(
            (
                "forward_only",
                "infer_micro_batch_size_per_gpu",
                "micro_batch_size_per_gpu",
                "seed",
                "strategy",
                "use_dynamic_bsz",
                "use_remove_padding",
            ),
            OWN,
        ),
        **dict.fromkeys(
            ("param_offload", "offload_policy"), "an export needs the weights on the device"
        ),
        "ulysses_sequence_parallel_size": "each rank computes whole rows",
        **dict.fromkeys(
            (
                "pad_to_length",
                "pad_to_length_bucket",
                "qat",
                "router_replay",
                "turbo_config",
                "use_fused_kernels",
                "use_orig_params",
            ),
            UNUSED,
        ),
    }

    optimizer_offload: bool | None = None
    """Keep the optimizer's state in the memory of the machine between steps."""
    reshard_after_forward: bool | None = None
    """Free the gathered weights of a layer after its forward pass; default: true."""
    fsdp_size: int | None = None
    """Ranks that share one copy of the weights; default: all of them."""
    forward_prefetch: bool | None = None
    """Gather the weights of the next layer during a forward pass."""
    wrap_policy: dict[str, Any] | None = None
    """Which layers are sharded: `transformer_layer_cls_to_wrap`."""
    model_dtype: str | None = None
    """Type of the weights during training; default: fp32."""
    use_no_sync_for_gradient_accumulation: bool | None = None
    """Reduce gradients after the last micro-batch only; default: true."""
    entropy_from_logits_with_chunking: bool | None = None
    """Compute entropies in chunks, with less memory; default: true."""
    entropy_from_logits_chunk_size: int | None = None
    """Tokens of such a chunk; default: 2048."""
    entropy_checkpointing: bool | None = None
    """Compute entropies again in the backward pass, with less memory."""
    use_torch_compile: bool | None = None
    """Compile the computation of entropies; default: false."""
    full_determinism: bool | None = None
    """Use deterministic algorithms only, which are slower."""


class Verl(Section):
    actor: VerlActor = VerlActor()
    optimizer: VerlOptimizer = VerlOptimizer()
    engine: VerlEngine = VerlEngine()
