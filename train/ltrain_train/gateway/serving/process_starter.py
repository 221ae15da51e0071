"""Starts the process of each policy server: a vLLM, or a client of a Tinker server."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from ltrain_train.errors import BadModel
from ltrain_train.gateway.serving.model_process import ModelProcess
from ltrain_train.gateway.serving.plan import PlannedServer
from ltrain_train.gateway.serving.tinker import TinkerOptions, TinkerProcess
from ltrain_train.gateway.serving.vllm import Vllm, VllmOptions
from ltrain_train.policy import NO_TEMPLATE, Policies, has_chat_template, is_elsewhere
from ltrain_train.processes import Children


@dataclass(frozen=True, slots=True)
class ProcessStarter:
    """Starts processes of one kind."""

    home: Path
    policies: Policies
    children: Children
    vllm: VllmOptions
    tinker: TinkerOptions | None
    """None: the processes are vLLMs."""
    log: Callable[[str], None]
    _: KW_ONLY
    alone: bool
    """Whether there is one process."""

    def start(self, planned: PlannedServer) -> ModelProcess:
        """Start the process of a server, and wait until it answers.

        Raises:
            BadModel: when vLLM cannot load the weights.
            ChildDied: when the process ends before it answers.
        """
        weights = planned.weights
        if self.tinker is None:
            self._check_model(weights.policy, weights.version)
        process = self._make(planned)
        self.log(f"starting {process.product}; its log is {process.log}")
        process.start(self.policies.path(weights.policy, weights.version))
        return process

    def _make(self, planned: PlannedServer) -> ModelProcess:
        name, sockets = planned.weights.policy, self.home / "sockets"
        suffix = "" if self.alone else f"-{name}"
        logs = self.home / "logs"
        if self.tinker is not None:
            log = logs / f"tinker{suffix}.log"
            return TinkerProcess(
                self.children, name=name, options=self.tinker, log=log, sockets=sockets
            )
        options = replace(self.vllm, max_adapters=planned.max_adapters, lora_rank=planned.rank)
        log = logs / f"vllm{suffix}.log"
        return Vllm(self.children, name=name, options=options, log=log, sockets=sockets)

    def _check_model(self, name: str, version: int) -> None:
        """Check that vLLM can load the weights, and print whether it can answer chats."""
        model = self.policies.weights_path(name, version)
        if is_elsewhere(model):
            raise BadModel(
                f"The weights of policy '{name}' are at a Tinker server, which its tinker.json "
                'names: vLLM cannot load them. Set on = "tinker" in [serve] (`ltrain serve --on '
                "tinker`)."
            )
        if not has_chat_template(model, self.vllm.chat_template):
            self.log(NO_TEMPLATE.format(f"policy '{name}'"))
