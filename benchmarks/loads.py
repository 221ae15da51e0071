"""Loads of full weights: seconds for which calls wait, and seconds of the whole request.

Two versions of a model are loaded in turn into vLLMs of the same machine: by vLLM's
`reload_weights` from files on the disk, and from files in memory (/dev/shm), and as `ltrain serve`
does it on a CPU, beside the weights in the server while calls run.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from benchmarks.support.servers import gateway
from safetensors.torch import load_file, save_file

from ltrain_train.gateway import GatewayClient
from ltrain_train.policy import Policies, fast_dtype
from ltrain_train.store import home_secret

POLICY = "policy"
MEMORY = Path("/dev/shm")
RELOAD = ("--", "--worker-extension-cls", "builtins.object")
"""Arguments that replace ltrain's class of vLLM's workers, so that weights are reloaded."""
BAR = 0.5
"""The largest ratio of the seconds of staged weights to those of files."""


@dataclass
class Way:
    """One way to load weights, and its measured seconds."""

    name: str
    place: Path
    arguments: tuple[str, ...]
    waits: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)

    def measure(self, client: GatewayClient, version: int) -> None:
        began = time.monotonic()
        self.waits.append(client.load(POLICY, version))
        self.totals.append(time.monotonic() - began)

    def line(self, other: "Way") -> str:
        wait, total = median(self.waits), median(self.totals)
        return (
            f"{self.name}: calls waited {wait:.3f} s ({wait / median(other.waits):.2f} times), "
            f"the load took {total:.2f} s ({total / median(other.totals):.2f} times)"
        )


def write_versions(home: Path, model: Path) -> None:
    """Register a model in the precision of this machine, and a second version of it."""
    policies = Policies(home)
    policies.register(POLICY, model)
    torch.manual_seed(0)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[fast_dtype()]
    for _ in range(2):
        draft = policies.draft(POLICY)
        draft.mkdir(parents=True)
        for file in model.iterdir():
            if file.suffix != ".safetensors":
                (draft / file.name).write_bytes(file.read_bytes())
        weights = load_file(model / "model.safetensors")
        moved = {k: (x.float() * (1 + 0.001 * torch.randn(x.shape))) for k, x in weights.items()}
        rounded = {name: x.to(dtype) for name, x in moved.items()}
        save_file(rounded, draft / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((draft / "config.json").read_text())
        config["dtype"] = str(dtype).removeprefix("torch.")
        (draft / "config.json").write_text(json.dumps(config))
        policies.register_files(POLICY, draft, parent=0)


@contextmanager
def opened(way: Way, model: Path) -> Iterator[GatewayClient]:
    write_versions(way.place / "home", model)
    with gateway(way.place, "--policy", POLICY, *way.arguments) as stack:
        client = GatewayClient(stack.gateway, home_secret(way.place / "home"))
        yield client
        client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(".ltrain/models/smollm2"))
    parser.add_argument("--loads", type=int, default=11)
    options = parser.parse_args()
    with ExitStack() as stack:
        disk, shared = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ltrain-loads-", dir=each)))
            for each in (None, MEMORY)
        )
        files, staged = Way("files", disk / "files", RELOAD), Way("staged", disk / "staged", ())
        ways = (files, Way("files in memory", shared / "files", RELOAD), staged)
        clients = [stack.enter_context(opened(way, options.model)) for way in ways]
        for number in range(options.loads):
            for way, client in zip(ways, clients, strict=True):
                way.measure(client, 1 + number % 2)
    print(*(way.line(files) for way in ways), sep="\n")
    met = median(staged.waits) <= BAR * median(files.waits)
    raise SystemExit(0 if met and median(staged.totals) <= BAR * median(files.totals) else 1)


if __name__ == "__main__":
    main()
