"""How `ltrain run` serves the policy."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ltrain_instrument.allow import UnsupportedTools
from ltrain_transforms.artifacts import Engine, Publish
from ltrain_transforms.recipe.section import Section, first_duplicate
from ltrain_transforms.recipe.train import TINKER_KEY, Train


class Route(Section):
    """Another model that agents call: its calls are traced and never trained."""

    model: str = Field(min_length=1, pattern=r"^[^=\s]+$")
    """Name that agents request."""
    url: str = Field(pattern=r"^https?://")
    """Base URL of an OpenAI-compatible server, such as `https://api.openai.com/v1`."""
    key: str | None = Field(default=None, pattern=r"^[A-Za-z_]\w*$")
    """Environment variable of `ltrain run` or `ltrain serve` that holds the server's key."""
    served_as: str | None = None
    """Name of the model at the server; default: `model`."""

    def as_text(self) -> str:
        """Return the route as the option `--route` of `ltrain serve` takes it."""
        return self.model_dump_json(exclude_none=True)


class Serve(Section):
    on: Engine = "vllm"
    """The server that samples: vllm on this machine, or tinker: [the server of the Tinker
    API](gateway.md#a-tinker-server) that `train.tinker` names."""
    upstream: str | None = None
    """URL of a running vLLM to use instead of starting one."""
    replicas: tuple[str, ...] = ()
    """URLs of the servers behind `upstream`, which is a router then: versions are loaded into each.
    """
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type in which vLLM computes; auto: that of `train.dtype`."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Maximum tokens of prompt and response together; unset: as many as the model allows and the
    memory holds."""
    max_num_seqs: int | None = Field(default=None, ge=1)
    """Maximum calls in one batch; unset: 64 on a CPU, and vLLM's own number on a GPU."""
    gpus: tuple[str, ...] = ()
    """GPUs of vLLM, as in CUDA_VISIBLE_DEVICES, each with a replica of the weights; unset: those
    after the learner's, if there are enough, else vLLM shares the first one with the learner."""
    tool_parser: str | None = None
    """vLLM's parser of the model's tool calls, such as `hermes`; unset: calls with tools are
    answered with text."""
    chat_template: str | None = None
    """File of the chat template, in the recipe's folder; unset: the model's own."""
    publish: Publish = "auto"
    """The published form of a LoRA adapter: `adapter`, which no call waits for, or `merged`
    weights; auto: what a trial at the start shows, and merged for a vLLM on a CPU."""
    weights: Literal["auto", "memory", "files"] = "auto"
    """How full weights reach vLLM: files: the version's; memory: that of a learner on the same
    machine, if vLLM can read it, else files; auto: memory on a GPU, files on a CPU."""
    max_adapters: int | None = Field(default=None, ge=1)
    """Most adapters of the policy in the policy server; unset: `train.max_staleness` and one more,
    at least 2."""
    unsupported_tools: UnsupportedTools = "drop"
    """Tools of a request that only a provider's servers run, such as web search: drop leaves them
    out of the call, refuse answers with status 400."""
    continue_tokens: bool = False
    """Whether a call that continues an earlier one of its attempt begins with the ids that the
    policy read and sampled there, thinking included; the chat template renders only the new
    messages."""
    responses_state: bool = False
    """Whether the gateway keeps the responses of `/v1/responses` for an hour, at most 256 MiB of
    memory, so that a request can name one as its `previous_response_id`."""
    route: tuple[Route, ...] = ()
    """Other models that agents call."""
    vllm: tuple[str, ...] = ()
    """Further arguments of `vllm serve`."""

    @model_validator(mode="after")
    def _routed(self) -> Self:
        if self.replicas and self.upstream is None:
            raise ValueError("replicas are behind a router. Set upstream to its URL.")
        return self

    @model_validator(mode="after")
    def _sampled(self) -> Self:
        if self.on == "vllm":
            return self
        of_vllm = ("upstream", "replicas", "gpus", "max_num_seqs", "vllm")
        named = [name for name in of_vllm if getattr(self, name)]
        if self.publish == "merged":
            named.append('publish = "merged"')
        if named:
            raise ValueError(
                f'{", ".join(named)}: they are settings of vLLM, and on = "tinker" starts none. '
                "Remove them."
            )
        return self

    @field_validator("route")
    @classmethod
    def _unique_models(cls, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        if model := first_duplicate(route.model for route in routes):
            raise ValueError(f"Two routes are of model '{model}'. Remove one.")
        return routes

    @property
    def starts_vllm(self) -> bool:
        """Whether `ltrain serve` starts a vLLM."""
        return self.on == "vllm" and self.upstream is None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The environment variables that hold the keys of other models; agents do not get them."""
        own = (TINKER_KEY,) if self.on == "tinker" else ()
        return (*own, *(route.key for route in self.route if route.key is not None))

    def arguments(self, folder: Path, dtype: str, train: Train) -> list[str]:
        """Return the options of `ltrain serve`, those of vLLM after --.

        Args:
            dtype: type in which vLLM computes if the section does not set it.
            train: the recipe's section, with the rank of the adapter.
        """
        vllm: list[str] = []
        if self.tool_parser is not None and self.on == "vllm":
            vllm.append("--enable-auto-tool-choice")
        if self.tool_parser is not None:
            vllm += ["--tool-call-parser", self.tool_parser]
        if self.chat_template is not None:
            vllm += ["--chat-template", str((folder / self.chat_template).resolve())]
        return [
            *(self._tinker_arguments(train) if self.on == "tinker" else ()),
            *(("--upstream", self.upstream) if self.upstream else ()),
            *(option for url in self.replicas for option in ("--replica", url)),
            *("--dtype", dtype if self.dtype == "auto" else self.dtype),
            *(("--max-model-len", str(self.max_model_len)) if self.max_model_len else ()),
            *(("--max-num-seqs", str(self.max_num_seqs)) if self.max_num_seqs else ()),
            *(("--gpus", ",".join(self.gpus)) if self.gpus else ()),
            *self._adapter_arguments(train),
            *(("--unsupported-tools", "refuse") if self.unsupported_tools == "refuse" else ()),
            *(("--continue-tokens",) if self.continue_tokens else ()),
            *(("--responses-state",) if self.responses_state else ()),
            *(option for route in self.route for option in ("--route", route.as_text())),
            *("--", *vllm, *self.vllm),
        ]

    def _tinker_arguments(self, train: Train) -> list[str]:
        server = train.tinker
        return [
            *("--on", "tinker"),
            *(("--base-url", server.base_url) if server.base_url else ()),
            *(("--base-model", server.base_model) if server.base_model else ()),
        ]

    def _adapter_arguments(self, train: Train) -> list[str]:
        if not train.lora_rank:
            return []
        held = self.max_adapters or max(2, train.max_staleness + 1)
        rank = ("--lora-rank", str(train.lora_rank))
        return ["--publish", self.publish, *rank, "--max-adapters", str(held)]
