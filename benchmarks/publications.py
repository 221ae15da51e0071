"""Publications while clients stream from a real vLLM: failed calls, waits, and wrong versions.

Adapters, then full weights, are published to `ltrain serve` while clients stream rollouts through
it. Each call's log-probabilities are computed again with the version that its span names, and with
the version before. Then a learner trains a model, and its merged weights reach vLLM as files and
from the learner's memory, in turn.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import polars as pl
import torch
import transformers
from benchmarks.support.call_spans import largest_difference, read_spans
from benchmarks.support.releases import describe, releases
from benchmarks.support.servers import gateway
from safetensors.torch import load_file, save_file

from ltrain_collector.access import AttemptKey
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity
from ltrain_train.gateway import GatewayClient
from ltrain_train.learner import merge_adapter
from ltrain_train.policy import Policies
from ltrain_train.store import home_secret

TINY = Path(__file__).parents[1] / "tests" / "train" / "tiny.py"
POLICY = "policy"
RANK, TOKENS = 4, 24
NOISE = 0.15
"""Standard deviation of adapters and of changes of full weights: each version samples otherwise."""
CLOSE = 1e-3
"""Largest difference of a log-probability that is computed again, in float32."""
SPANS_SQL = """
SELECT SpanAttributes['ltrain.rollout.id'] AS rollout,
  toInt64(SpanAttributes['ltrain.policy.version']) AS version,
  SpanAttributes['ltrain.prompt_token_ids'] AS prompt,
  SpanAttributes['ltrain.response_token_ids'] AS response,
  SpanAttributes['ltrain.response_logprobs'] AS logprobs
FROM otel.spans WHERE ScopeName = 'ltrain.gateway' AND SpanName LIKE 'chat%'
"""
hugging_face: Any = transformers  # its functions have no types


@dataclass
class Report:
    """What the publications did to the calls."""

    adapters: int
    swaps: int
    calls: int = 0
    failed: int = 0
    shut_for_adapters: int = 0
    """Adapters whose publication made calls wait."""
    publish_seconds: list[float] = field(default_factory=list)
    """Seconds of the adapters' publications, for the client."""
    swap_seconds: list[float] = field(default_factory=list)
    """Seconds that calls waited for each of the full weights."""
    versions: int = 0
    """Versions that answered a call."""
    wrong: int = 0
    """Calls whose log-probabilities are not those of their version."""
    largest_difference: float = 0.0
    like_another: int = 0
    """Calls whose log-probabilities are those of the version before, too."""

    def lines(self) -> Iterator[str]:
        yield f"calls {self.calls}, failed {self.failed}, of {self.versions} versions"
        first, *others = self.publish_seconds
        yield (
            f"{self.adapters} adapters: calls waited for {self.shut_for_adapters}; the first "
            f"publication took {first:.2f} s, the others {median(others):.2f} s"
        )
        yield f"{self.swaps} full weights: calls waited {max(self.swap_seconds):.2f} s at most"
        yield (
            f"calls with other log-probabilities than their version's: {self.wrong} "
            f"(largest difference {self.largest_difference:.1e}; {self.like_another} are also like "
            "the version before)"
        )

    @property
    def met(self) -> bool:
        """Whether no call failed, waited for an adapter, or had a wrong version."""
        return not (self.failed or self.shut_for_adapters or self.wrong or self.like_another)


def write_versions(policies: Policies, place: Path, adapters: int, swaps: int) -> None:
    """Register a tiny model, and add adapters and full weights."""
    model = place / "model"
    subprocess.run([sys.executable, TINY, model], check=True, capture_output=True)
    policies.register(POLICY, model)
    weights = load_file(model / "model.safetensors")
    torch.manual_seed(0)
    for number in range(adapters):
        policies.add(POLICY, write_adapter(place / f"adapter-{number}", weights), parent=0)
    for number in range(swaps):
        folder = place / f"weights-{number}"
        folder.mkdir()
        for file in model.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        moved = {name: x + NOISE * torch.randn_like(x) for name, x in weights.items()}
        save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
        policies.add(POLICY, folder, parent=0)


def write_adapter(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    """Write a random adapter of every projection."""
    folder.mkdir()
    tensors = {}
    for name, weight in weights.items():
        if "_proj" in name:
            module = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{module}.lora_A.weight"] = torch.randn(RANK, weight.shape[1]) * NOISE
            tensors[f"{module}.lora_B.weight"] = torch.randn(weight.shape[0], RANK) * NOISE
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    targets = sorted({name.split(".")[-3] for name in tensors})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


class Clients:
    """Streams rollouts of one call each, until they are stopped."""

    def __init__(self, url: str, home: Path, count: int) -> None:
        self._secret = home_secret(home)
        self._http = httpx.Client(
            base_url=url, timeout=120, limits=httpx.Limits(max_connections=99)
        )
        self._gateway = GatewayClient(url, self._secret)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.failed = 0
        self.rollouts: set[str] = set()
        """The rollouts that ended."""
        self._pool = ThreadPoolExecutor(count)
        self._running = [self._pool.submit(self._run, number) for number in range(count)]

    def wait_warm(self) -> None:
        """Wait until each client has made a call; the first ones take vLLM seconds."""
        self._wait_rollouts(len(self._running))

    def wait_new(self) -> None:
        """Wait until a call has ended that began after now."""
        self._wait_rollouts(len(self.rollouts) + len(self._running) + 1)

    def stop(self) -> None:
        """Wait for the calls in flight."""
        self._stopping.set()
        for each in self._running:
            each.result()
        self._pool.shutdown()
        self._http.close()
        self._gateway.close()

    def _wait_rollouts(self, count: int) -> None:
        while len(self.rollouts) < count and not any(map(_failed, self._running)):
            time.sleep(0.1)

    def _run(self, number: int) -> None:
        for count in range(10**6):
            if self._stopping.is_set():
                return
            self._roll_out(f"r{number}-{count}")

    def _roll_out(self, rollout: str) -> None:
        identity = Identity(run="bench", task="t", wave=0, rollout=rollout, attempt=1, mode="train")
        claims = AttemptKey(
            identity=identity,
            policy=POLICY,
            sampling={"temperature": 1.0},
            expires=Deadline.after(600),
        )
        key = claims.sign(self._secret)
        complete = self._stream(f"/rollout/{rollout}/attempt/1/v1/chat/completions", key)
        self._gateway.close_attempt(identity, key)
        with self._lock:
            self.failed += not complete
            self.rollouts.add(rollout)

    def _stream(self, path: str, key: str) -> bool:
        """Make one streamed call, and return whether it was answered completely."""
        message = {"role": "user", "content": "w1 w2 w3"}
        body = {"model": POLICY, "messages": [message], "max_tokens": TOKENS, "stream": True}
        headers = {"authorization": f"Bearer {key}"}
        with self._http.stream("POST", path, json=body, headers=headers) as response:
            text = response.read().decode()
        return response.status_code == 200 and text.rstrip().endswith("data: [DONE]")


def _failed(running: Future[None]) -> bool:
    return running.done() and running.exception() is not None


def publish_all(url: str, home: Path, report: Report, clients: Clients) -> None:
    """Publish each adapter, then each of the full weights, while the clients stream."""
    gateway_client = GatewayClient(url, home_secret(home))
    clients.wait_warm()
    last = report.adapters
    for version in range(1, last + 1):
        began = time.monotonic()
        report.shut_for_adapters += gateway_client.load(POLICY, version) > 0
        report.publish_seconds.append(time.monotonic() - began)
        clients.wait_new()
    for version in range(last + 1, last + report.swaps + 1):
        report.swap_seconds.append(gateway_client.load(POLICY, version))
        clients.wait_new()
    gateway_client.close()


def check_versions(spans: pl.DataFrame, policies: Policies, report: Report, place: Path) -> None:
    """Compute the log-probabilities of each call again, with its version and the one before."""
    report.versions = spans["version"].n_unique()
    for (version,), calls in spans.group_by("version"):
        for number, is_own in ((int(str(version)), True), (int(str(version)) - 1, False)):
            if number < 0:
                continue
            model = load_version(policies, number, place)
            for call in calls.iter_rows(named=True):
                difference = compare(model, call)
                if is_own:
                    report.wrong += difference > CLOSE
                    report.largest_difference = max(report.largest_difference, difference)
                else:
                    report.like_another += difference < CLOSE


def load_version(policies: Policies, version: int, place: Path) -> Any:
    """Return the model of a version in float32."""
    folder, weights = policies.path(POLICY, version), policies.weights_path(POLICY, version)
    if folder != weights:
        merged = place / f"merged-{version}"
        if not merged.exists():
            merge_adapter(weights, folder, merged)
        folder = merged
    return hugging_face.AutoModelForCausalLM.from_pretrained(folder).float().eval()


def compare(model: Any, call: dict[str, Any]) -> float:
    """Return the largest difference between a call's log-probabilities and the model's."""
    prompt, response = json.loads(call["prompt"]), json.loads(call["response"])
    return largest_difference(model, prompt + response, len(prompt), call["logprobs"])


def run(place: Path, *, adapters: int, swaps: int, clients: int, replicas: int) -> Report:
    """Publish while clients stream, and check every call."""
    policies, report = Policies(place / "home"), Report(adapters, swaps)
    write_versions(policies, place, adapters, swaps)
    options: tuple[str, ...] = (
        "--publish",
        "adapter",
        "--lora-rank",
        str(RANK),
        "--dtype",
        "float32",
    )
    if replicas > 1:
        options += ("--", "--data-parallel-size", str(replicas))
    with gateway(place, "--policy", POLICY, *options) as stack:
        streaming = Clients(stack.gateway, place / "home", clients)
        try:
            publish_all(stack.gateway, place / "home", report, streaming)
        finally:
            streaming.stop()
        report.calls, report.failed = len(streaming.rollouts), streaming.failed
        spans = read_spans(stack.store, SPANS_SQL, report.calls)
    report.failed += abs(report.calls - spans.height)
    hugging_face.utils.logging.disable_progress_bar()
    check_versions(spans, policies, report, place)
    return report


def release(place: Path, model: Path, rounds: int, rank: int) -> Iterator[str]:
    """Release updates of a model from files and from memory, and yield a line for each."""
    home = place / "home"
    Policies(home).register(POLICY, model)
    with gateway(place, "--policy", POLICY) as stack:
        measured = releases(stack.gateway, home, POLICY, rounds=rounds, lora_rank=rank)
        yield from describe(list(measured))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapters", type=int, default=20)
    parser.add_argument("--swaps", type=int, default=5)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--model", type=Path, default=Path(".ltrain/models/smollm2"))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rank", type=int, default=16, help="of the learner's adapter; 0: none")
    options = vars(parser.parse_args())
    released = [options.pop(name) for name in ("model", "rounds", "rank")]
    with tempfile.TemporaryDirectory(prefix="ltrain-publications-") as folder:
        report = run(Path(folder), **options)
    print(*report.lines(), sep="\n")
    with tempfile.TemporaryDirectory(prefix="ltrain-publications-") as folder:
        print(*release(Path(folder), *released), sep="\n")
    raise SystemExit(0 if report.met else 1)


if __name__ == "__main__":
    main()
