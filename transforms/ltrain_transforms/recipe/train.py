"""How a policy is trained on the rows of a dataset."""

import re
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from ltrain_instrument.allow import ConstrainedCalls
from ltrain_instrument.errors import UnknownName
from ltrain_transforms import alarms
from ltrain_transforms.recipe.policy_loss import (
    POLICY_LOSSES,
    check_estimator,
    check_loss,
    check_weighting,
)
from ltrain_transforms.recipe.section import BUDGET, Section
from ltrain_transforms.recipe.verl_options import Verl

ADAPTER_RATE, FULL_RATE = 5e-4, 1e-5
"""The default learning rates. An adapter starts at zero and needs a higher one."""
MICRO_BATCH_TOKENS = 768
"""Tokens in one micro-batch, unless the recipe or the memory of a GPU sets them."""


def _default_rate(fields: dict[str, Any]) -> float:
    # a wrong lora_rank is not in `fields`, and an error anyway
    return ADAPTER_RATE if fields.get("lora_rank", 0) else FULL_RATE


def _default_weighting(fields: dict[str, Any]) -> Literal["rollout", "token"]:
    loss = POLICY_LOSSES.get(fields.get("loss", ""))  # None: a wrong name, an error anyway
    return "token" if loss and loss.needs_token_weighting else "rollout"


REJECTION_BOUNDS = {"geometric": (0.99, 1.01), "token_veto": (1e-4, 1e4)}
"""The default bounds of each rejection."""


def _default_min(fields: dict[str, Any]) -> float:
    return REJECTION_BOUNDS.get(fields.get("rejection", ""), (1.0, 1.0))[0]


def _default_max(fields: dict[str, Any]) -> float:
    return REJECTION_BOUNDS.get(fields.get("rejection", ""), (1.0, 1.0))[1]


def _default_estimator(fields: dict[str, Any]) -> str:
    return "k1" if fields.get("kl_in") == "reward" else "k3"


Tracker = Literal["tensorboard", "wandb", "mlflow"]
TRACKER_NAMES: tuple[str, ...] = get_args(Tracker)
"""The libraries that may record a run's curves."""


Colocate = Literal["auto", "split", "swap"]
"""How vLLM and the learner share a GPU."""


class Critic(Section):
    """A network beside the policy, which estimates the return of each token; with `gae` only."""

    learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate of the critic's AdamW; default: that of the policy, with its schedule."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of rewards for each sampled token."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """The lambda of GAE. 1: an advantage is the return less the value; below 1 it relies more on
    the values of later tokens, which lowers its variance and adds the critic's error."""
    value_clip: float = Field(default=0.5, gt=0)
    """Largest change of a token's value in an update that the value loss rewards."""
    whiten: bool = True
    """Whether an update's advantages are shifted and scaled to mean 0 and deviation 1 over its
    sampled tokens."""
    warmup_updates: int = Field(default=0, ge=0)
    """First updates of a run, in which the critic alone is trained."""


TINKER_KEY = "TINKER_API_KEY"
"""The environment variable with the key of the Tinker server; a recipe cannot have the key."""


class TinkerPrices(Section):
    """The prices of a Tinker server, in USD for a million tokens."""

    prefill: float = Field(ge=0)
    """For tokens that the model reads: prompts, and rows in a forward pass."""
    sample: float = Field(ge=0)
    """For sampled tokens."""
    train: float = Field(ge=0)
    """For tokens of a forward and backward pass."""


class Tinker(Section):
    """A server of the Tinker API. Its key is in the environment variable TINKER_API_KEY only."""

    base_url: str | None = Field(default=None, pattern=r"^https?://[^@\s]+$")
    """URL of the server; unset: the service of Thinking Machines."""
    base_model: str | None = Field(default=None, min_length=1)
    """Name of the base model at the server; unset: that of `tinker.json` in the
    [model's folder](policies.md#weights-at-a-tinker-server)."""
    prices: TinkerPrices | None = None
    """By which `ltrain run --once --dry-run` estimates what an update costs; unset: it does not."""

    @model_validator(mode="before")
    @classmethod
    def _without_key(cls, fields: Any) -> Any:
        for name in ("key", "api_key", "token"):
            if isinstance(fields, dict) and name in fields:
                raise ValueError(
                    f"A recipe has no keys: its text is stored with every version. Remove `{name}`,"
                    f" and set {TINKER_KEY} in the environment."
                )
        return fields

    @field_validator("base_url")
    @classmethod
    def _without_slash(cls, url: str | None) -> str | None:
        return url if url is None else url.rstrip("/")


_SERVER_COMPUTES = "the server divides the work itself"
TINKER_LACKS = {
    "lora_alpha": "the server sets the scale of an adapter",
    "entropy_coefficient": "the API has no entropies",
    "kl_coefficient": "the API has no reference",
    "critic": "the API trains no critic",
    "ranks": _SERVER_COMPUTES,
    "sequence_ranks": _SERVER_COMPUTES,
    "tokens_per_micro_batch": _SERVER_COMPUTES,
    "ray_address": "the learner needs no Ray",
    "colocate": "the learner uses no GPU of this machine",
}
"""Keys of [train] that the API has no use for, and why."""
TINKER_OPTIMIZER = {"betas", "weight_decay"}
"""The keys of [train.verl.optimizer] that the API has, too."""

RUN_KEYS = (
    *("mode", "updates", "dtype", "ray_address", "trackers", "span_timeout", "hang_timeout"),
    *("backend", "constrained", "colocate", "tinker"),
    *("validate_every", "patience", "max_tokens", "max_minutes", "stop_on"),
)
"""The keys of [train] that all policies of a run share."""


class Train(Section):
    backend: Literal["verl", "tinker"] = "verl"
    """The backend that trains. verl: on this machine or a Ray cluster. tinker: at the
    [server](tinker.md) that [train.tinker] names."""
    loss: str = "vanilla"
    """One of verl's policy losses: see the choices below."""
    lora_rank: int = Field(default=16, ge=0)
    """Rank of the LoRA adapter; 0 trains all weights."""
    learning_rate: float = Field(default_factory=_default_rate, gt=0)
    """Learning rate of AdamW; default: 5e-4 for a LoRA adapter, 1e-5 for all weights."""
    warmup_updates: int = Field(default=0, ge=0)
    """First updates of a run, in which the learning rate rises in equal steps."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls, from the end of the warm-up to 0 after the run's `updates`."""
    lora_alpha: int | None = None
    """Scale of the LoRA adapter; default: twice the rank."""
    clip_ratio_low: float = Field(default=0.2, ge=0)
    """The importance ratio is clipped from below at 1 minus this."""
    clip_ratio_high: float = Field(default=0.2, ge=0)
    """The importance ratio is clipped from above at 1 plus this."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Factor of the policy's entropy in the loss, which the entropy lowers."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Factor of the policy's KL divergence from `reference`; 0: there is no reference."""
    kl_in: Literal["loss", "reward"] = "loss"
    """loss: the divergence under the trained weights is added to the loss. reward: the divergence
    before the update is subtracted from each token's advantage."""
    kl_estimator: str = Field(default_factory=_default_estimator)
    """How the divergence of a token is estimated: see the choices below; default: k3 in the loss,
    k1 in the reward."""
    reference: str = Field(default="base", pattern=r"^(base|[A-Za-z0-9][A-Za-z0-9._-]*@\d+)$")
    """The policy whose divergence is measured. base: the weights at the start of training, which
    with an adapter are those of the same model. `sql@3`: a version, which is loaded beside it."""
    updates: Annotated[int, BUDGET] = Field(default=10, ge=1)
    """Updates of an online run; each has one wave."""
    mode: Literal["sync", "async", "auto"] = "sync"
    """sync: a wave is sampled after the update on the previous one. async: it is sampled meanwhile,
    so that its calls are one version older. auto: the first six updates measure both."""
    steps_per_wave: int = Field(default=1, ge=1)
    """Optimizer steps in each update."""
    ranks: int = Field(default=1, ge=1)
    """Data-parallel processes of the learner, on a machine with GPUs one for each."""
    sequence_ranks: int = Field(default=1, ge=1)
    """Ranks that compute [each row together](gpus.md#long-rows), every one of them a part of its
    tokens; a divisor of `ranks`."""
    ray_address: Annotated[str | None, BUDGET] = None
    """The Ray cluster whose machines the ranks run on: `host:port`, or `auto` for the one of this
    machine; default: a private one on this machine."""
    colocate: Annotated[Colocate, BUDGET] = "auto"
    """How vLLM and the learner share [one GPU](gpus.md#one-gpu). split: each has a part of its
    memory. swap: they have all of it in turn. auto: split, if both parts hold what they need."""
    tokens_per_micro_batch: int | None = Field(default=None, ge=1)
    """Tokens in one micro-batch, which limit memory and do not change the result; unset: 768, and
    on a GPU as many as fit into the learner's part, at most 16,384."""
    max_staleness: int = Field(default=4, ge=0)
    """Largest distance, along the parents of versions, from the trained version to the one that
    sampled a call; rollouts with an older call are left out."""
    constrained: ConstrainedCalls = "masked"
    """Calls with structured output or forced tools. masked: the learner applies the server's masks
    of token ids. relaxed: the gateway describes the format in the prompt in place of masks, in
    training and in validation. refused: a call in training with one is an error."""
    loss_weighting: Literal["rollout", "call", "token"] = Field(default_factory=_default_weighting)
    """The unit that has equal weight in the loss; default: the rollout, or the token for a loss
    that needs it."""
    correction: Literal["bypass", "token_tis", "sequence_tis"] = "bypass"
    """bypass: the server's log-probabilities are the old policy's. token_tis: the learner
    recomputes them, and weights each token by the capped ratio of the two. sequence_tis: it weights
    all tokens of a call by the capped product of their ratios."""
    correction_cap: float = Field(default=2.0, gt=0)
    """Upper bound of the ratio in token_tis and sequence_tis."""
    rejection: Literal["none", "geometric", "token_veto"] = "none"
    """Calls that are not trained on. geometric: those whose geometric mean of the ratios of learner
    to server is out of bounds. token_veto: those with one such ratio out of bounds."""
    rejection_min: float = Field(default_factory=_default_min, gt=0, le=1)
    """Lower bound of the ratio; default: 0.99 for geometric, 0.0001 for token_veto."""
    rejection_max: float = Field(default_factory=_default_max, ge=1)
    """Upper bound of the ratio; default: 1.01 for geometric, 10000 for token_veto."""
    drift_outlier: Annotated[float, BUDGET] = Field(default=0.5, gt=0)
    """A token is an outlier if the log-probabilities of learner and server differ by more."""
    drift_warning: Annotated[float, BUDGET] = Field(default=0.02, ge=0)
    """Drift (k3 of learner and server) above which a run warns."""
    drift_limit: Annotated[float, BUDGET] = Field(default=0.2, gt=0)
    """Drift above which a run ends before it trains and publishes."""
    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    """Type of the weights of saved and served versions, and of the computation where the processor
    is fast in it; auto: bf16 on such a processor, else fp32."""
    gradient_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    span_timeout: Annotated[float, BUDGET] = Field(default=20.0, ge=0)
    """Seconds to wait for the spans of a wave; then rollouts that lack some are left out. Spans
    that the runner counted are waited for as long as an outage may last."""
    hang_timeout: Annotated[float, BUDGET] = Field(default=900.0, gt=0)
    """Seconds without progress after which the learner counts as hung and the run ends."""
    validate_every: Annotated[int, BUDGET] = Field(default=0, ge=0)
    """Updates between validations; 0: validate only before and after the run."""
    patience: Annotated[int | None, BUDGET] = Field(default=None, ge=1)
    """Validations in a row without a new best score after which the run ends."""
    max_tokens: Annotated[int | None, BUDGET] = Field(default=None, ge=1)
    """Tokens of the trained rows after which the run ends."""
    max_minutes: Annotated[float | None, BUDGET] = Field(default=None, gt=0)
    """Minutes since the start of the command after which the run begins no update."""
    stop_on: Annotated[tuple[str, ...], BUDGET] = ()
    """Names of [alarms](alarms.md) with which a run stops after the wave that raises one."""
    serve: Annotated[Literal["latest", "best"], BUDGET] = "latest"
    """The version that is current after the run; best: the one with the best validation score."""
    trackers: Annotated[tuple[Tracker, ...], BUDGET] = ()
    """Where a run also records its curves; `tensorboard`: in the run's folder."""
    keep_versions: Annotated[int, BUDGET] = Field(default=3, ge=1)
    """Newest versions that a run keeps, besides the current one, version 0 and the best; older ones
    are removed."""
    critic: Critic | None = None
    verl: Verl = Verl()
    tinker: Tinker = Tinker()

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens in one micro-batch, 768 if they are not set."""
        return self.tokens_per_micro_batch or MICRO_BATCH_TOKENS

    @field_validator("loss")
    @classmethod
    def _known(cls, name: str) -> str:
        check_loss(name)
        return name

    @field_validator("ray_address")
    @classmethod
    def _node_address(cls, address: str | None) -> str | None:
        if address is not None and not re.fullmatch(r"auto|[^/\s]+:\d+", address):
            raise ValueError(
                f"{address!r} is not the address of a Ray cluster that a learner can join. Set it "
                "to the host:port that `ray start --head` prints, or to auto, and run the command "
                "on a machine of the cluster. A ray:// address cannot carry a learner."
            )
        return address

    @field_validator("kl_estimator")
    @classmethod
    def _known_estimator(cls, name: str) -> str:
        check_estimator(name)
        return name

    @field_validator("stop_on")
    @classmethod
    def _known_alarms(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        try:
            alarms.check_names(names)
        except UnknownName as error:
            raise ValueError(str(error)) from error
        return names

    @model_validator(mode="after")
    def _validated(self) -> Self:
        if self.patience is not None and not self.validate_every:
            raise ValueError(
                "`patience` counts validations, and `validate_every` is 0: then there are two. Set "
                "`validate_every`, such as 1."
            )
        return self

    @model_validator(mode="after")
    def _divided(self) -> Self:
        if self.ranks % self.sequence_ranks:
            raise ValueError(
                f"`ranks` is {self.ranks}, and `sequence_ranks` is {self.sequence_ranks}: each row "
                "needs so many ranks. Set `ranks` to a multiple of `sequence_ranks`."
            )
        return self

    @property
    def trains_elsewhere(self) -> bool:
        """Whether other machines than this one train."""
        return self.ray_address is not None or self.backend == "tinker"

    @model_validator(mode="after")
    def _fitting_backend(self) -> Self:
        if self.backend == "tinker":
            _check_tinker(self)
        return self

    @model_validator(mode="after")
    def _weighted(self) -> Self:
        check_weighting(self.loss, self.loss_weighting)
        return self


def _check_tinker(train: Train) -> None:
    """Check that a server of the Tinker API can train by the other keys."""
    if not train.lora_rank:
        raise ValueError(
            "`lora_rank` is 0, and the Tinker API trains adapters only. Set it, such as 16."
        )
    for name, reason in TINKER_LACKS.items():
        if getattr(train, name) != type(train).model_fields[name].default:
            raise _refusal(f"`{name}`", reason)
    for name in train.verl.engine.options():
        raise _refusal(f"[train.verl.engine] {name}", _SERVER_COMPUTES)
    for name in sorted(train.verl.optimizer.options().keys() - TINKER_OPTIMIZER):
        raise _refusal(f"[train.verl.optimizer] {name}", "the API has AdamW")


def _refusal(key: str, reason: str) -> ValueError:
    return ValueError(
        f'{key} cannot be set with backend = "tinker": {reason}. Remove it, or set backend = '
        '"verl".'
    )
