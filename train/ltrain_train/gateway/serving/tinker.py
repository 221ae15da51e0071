"""Runs the policy server of a Tinker server as a child process: `tinker_server`.

It is a process of its own, because the SDK's packages are not those of the gateway.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ltrain_instrument.errors import LtrainError
from ltrain_train.gateway.serving.model_process import ModelProcess
from ltrain_train.overlays import TINKER, TINKER_ENVIRONMENT
from ltrain_train.policy import read_tinker_weights
from ltrain_train.processes import Children
from ltrain_transforms.recipe import TINKER_KEY

PROGRAM = "ltrain_train.gateway.tinker_server.program"
ADAPTERS_ONLY = "a Tinker server samples its base model and adapters of it"
"""Why a learner publishes adapters only."""
PREFIXES = ("tml-", "eyJ")
"""The beginnings of keys that the SDK takes; the second one is that of a JWT."""


class TinkerUnusable(LtrainError, ValueError):
    """There is no key for the Tinker server, or its base model is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerOptions:
    """The options of a policy server that samples from a Tinker server."""

    base_url: str | None = None
    """URL of the Tinker server; None: the service of Thinking Machines."""
    base_model: str | None = None
    """Name of the base model there; None: that of `tinker.json` in the model's folder."""
    max_model_len: int | None = None
    """Maximum tokens of prompt and response together; None: as many as model and server allow."""
    extra: tuple[str, ...] = ()
    """Further arguments: `--tool-call-parser NAME`, `--chat-template FILE`."""

    def require(self) -> None:
        """Check that there are a key and the SDK.

        Raises:
            TinkerUnusable: when there is no key.
            BadRun: when the SDK is not installed.
        """
        if not os.environ.get(TINKER_KEY, "").startswith(PREFIXES):
            raise TinkerUnusable(
                f"{TINKER_KEY} holds no key of a Tinker server. Set it to the key, which begins "
                "with tml-; a server of your own takes any such text, such as tml-local."
            )
        TINKER.find()

    def find_base_model(self, folder: Path) -> str:
        """Return the name of the base model of the weights in a folder.

        Raises:
            TinkerUnusable: when none is named, or two are.
        """
        weights = read_tinker_weights(folder)
        named = {name for name in (self.base_model, weights and weights.base_model) if name}
        if len(named) == 1:
            return named.pop()
        problem = "names another base model than" if named else "names no base model, and neither"
        raise TinkerUnusable(
            f"'{folder}' {problem} train.tinker.base_model (`ltrain serve --base-model`). Set it "
            "to the name that the Tinker server has for the model, such as Qwen/Qwen3-8B."
        )


class TinkerProcess(ModelProcess):
    """One policy server that samples from a Tinker server."""

    def __init__(
        self, children: Children, *, name: str, options: TinkerOptions, log: Path, sockets: Path
    ) -> None:
        super().__init__(children, "the Tinker client", name=name, log=log, sockets=sockets)
        self._options = options

    def command(self, model: Path) -> Sequence[str]:
        """Return the command line."""
        options = self._options
        return [
            *(sys.executable, "-P", "-m", PROGRAM, str(model), "--uds", str(self.socket)),
            *("--served-model-name", self.name),
            *("--base-model", options.find_base_model(model)),
            *("--runs", str(self.log.with_suffix(".runs"))),
            *(("--base-url", options.base_url) if options.base_url else ()),
            *(("--max-model-len", str(options.max_model_len)) if options.max_model_len else ()),
            *options.extra,
        ]

    def environment(self) -> Mapping[str, str | None]:
        """Return the variables that are added to the environment."""
        return {**TINKER_ENVIRONMENT, "HF_HUB_OFFLINE": "1"}
