"""A gateway with a vLLM and a store of its own, for the stages that sample."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.stage import Check
from benchmarks.support.servers import gateway

from ltrain_collector.access import AttemptKey
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity
from ltrain_train.gateway import GatewayClient
from ltrain_train.policy import Policies
from ltrain_train.store import home_secret

POLICY = "policy"
SHARE = "0.4"
"""vLLM's part of the GPU, beside a learner."""
MODEL_LENGTH = "1024"
"""Most tokens of a call."""


@dataclass(frozen=True, slots=True)
class Served:
    """The addresses of a gateway and its vLLM."""

    gateway: str
    """The URL of the gateway."""
    attempt: str
    """The URL of an attempt below it."""
    key: str
    """The key of that attempt."""
    socket: Path
    """The socket on which vLLM answers by itself."""
    store: str
    """The URL for SQL."""
    policies: Policies
    client: GatewayClient


@contextmanager
def served(check: Check, model: Path) -> Iterator[Served]:
    """Start a store, a gateway and vLLM, and yield their addresses."""
    home = check.folder / "home"
    policies = Policies(home)
    policies.register(POLICY, model)
    options = ["--policy", POLICY, "--max-model-len", MODEL_LENGTH]
    options += ["--", "--gpu-memory-utilization", SHARE] if check.device == "cuda" else []
    with gateway(check.folder, *options) as stack:
        (socket,) = (home / "sockets").glob("*/http")
        client = GatewayClient(stack.gateway, home_secret(home))
        url = f"{stack.gateway}/rollout/r1/attempt/1/v1"
        yield Served(stack.gateway, url, sign_key(home), socket, stack.store, policies, client)
        client.close()


def sign_key(home: Path) -> str:
    """Return the key of an attempt."""
    claims = AttemptKey(
        identity=Identity(run="gpu", task="t", rollout="r1", attempt=1, mode="train"),
        policy=POLICY,
        sampling={"temperature": 1.0},
        expires=Deadline.after(3600),
    )
    return claims.sign(home_secret(home))
