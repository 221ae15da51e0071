"""The learner's updates: tokens a second on a CPU or a GPU, memory, and how exact the numbers are.

The model has random weights. A row has 2,000 tokens, and eight rows have 1,000 of them in common.
An update computes the rows' log-probabilities, which it compares with the server's, and makes one
optimizer step. On a GPU the first one compiles kernels too, so it is printed by itself.

`difference` is the mean distance of the learner's log-probabilities of two rows from those of
transformers, which computes each row alone, in float32.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import torch
import transformers
from benchmarks.learner import write_samples

from ltrain_train.gpu import list_gpus
from ltrain_train.learner import LearnerClient, Objective
from ltrain_transforms.recipe import Train

hugging_face: Any = transformers  # its classes have no types
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 49_152,
        "tie_word_embeddings": True,
    },
    "four-layers": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 4,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 4096,
        "tie_word_embeddings": True,
    },
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
        "tie_word_embeddings": True,
    },
    "qwen2.5-1.5b": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "llama-3.2-3b": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "tie_word_embeddings": False,
    },
}
"""Shapes of small models and of known ones, as the arguments of transformers' LlamaConfig."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NO_DRIFT_LIMIT = 1e9
"""The rows have random log-probabilities."""
COMPARED = 2
"""Rows whose log-probabilities are compared."""
WATCH = 0.2
"""Seconds between two readings of the GPU's memory."""


def write_model(out: Path, shape: str, computed: str) -> int:
    """Write a model of random bfloat16 weights, and return its number of parameters.

    Ministral has Llama's layers, and the learner packs its rows. With a kind of layer that Llama
    does not have, and transformers ignores, the learner computes each row alone.
    """
    torch.manual_seed(0)
    options = {**SHAPES[shape], "max_position_embeddings": 8192}
    if computed == "packed":
        options |= {"head_dim": options["hidden_size"] // options["num_attention_heads"]}
        options |= {"layer_types": ["full_attention"] * options["num_hidden_layers"]}
        config = hugging_face.MinistralConfig(**options)
    else:
        config = hugging_face.LlamaConfig(**options)
    with torch.device(DEVICE):
        model = hugging_face.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(out)
    if computed == "alone":
        path = out / "config.json"
        layers = {"layer_types": ["chunked_attention"] * config.num_hidden_layers}
        path.write_text(json.dumps(json.loads(path.read_text()) | layers))
    return sum(each.numel() for each in model.parameters())


def row_by_row(model: Path, rows: pl.DataFrame) -> torch.Tensor:
    """Return the log-probabilities of all response tokens, from transformers in float32."""
    load = hugging_face.AutoModelForCausalLM.from_pretrained
    loaded = load(model, dtype=torch.float32, attn_implementation="sdpa").to(DEVICE)
    result = []
    for prompt, response in rows.select("prompt_ids", "response_ids").iter_rows():
        ids = torch.tensor([prompt + response], device=DEVICE)
        with torch.no_grad():
            logits = loaded(ids).logits[0, len(prompt) - 1 : -1]
        chosen = ids[0, len(prompt) :, None]
        result.append(logits.log_softmax(-1).gather(1, chosen)[:, 0].cpu())
    return torch.cat(result)


class MemoryWatch(threading.Thread):
    """Reads the used memory of all GPUs until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_gib = 0.0
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(WATCH):
            used = sum((gpu.total or 0) - (gpu.free or 0) for gpu in list_gpus())
            self.peak_gib = max(self.peak_gib, used / 1024)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make the updates and return their figures."""
    parameters = write_model(folder / "model", arguments.shape, arguments.computed)
    torch.cuda.empty_cache()
    samples, few = folder / "samples.parquet", folder / "few.parquet"
    write_samples(samples, arguments.rows)
    compared = pl.read_parquet(samples).head(COMPARED)
    compared.write_parquet(few)
    train = Train(
        lora_rank=arguments.lora_rank,
        tokens_per_micro_batch=arguments.tokens_per_micro_batch,
        drift_warning=NO_DRIFT_LIMIT,
        drift_limit=NO_DRIFT_LIMIT,
    )
    watch = MemoryWatch()
    watch.start()
    began = time.monotonic()
    with LearnerClient(train, folder / "model", directory=folder, policy="bench") as learner:
        learner.wait()
        ready = time.monotonic() - began
        log_probs = [value for row in learner.log_probs(few) for value in row]
        objective = Objective.from_train(train)
        reports = [
            learner.step(samples, objective, version=0) for _ in range(arguments.updates + 1)
        ]
    watch.stop()
    distance = (torch.tensor(log_probs) - row_by_row(folder / "model", compared)).abs()
    if arguments.log is not None:
        shutil.copy(folder / "learner.log", arguments.log)
    first, *others = reports
    seconds = statistics.median(report.seconds for report in others)
    computed = first.metrics["computed_tokens"]
    # for each parameter and token: 2 in each of two forwards, 2 for the gradient of what a layer
    # computes, and 2 for that of its weights
    operations = (6 if arguments.lora_rank else 8) * parameters * computed
    return {
        "parameters": parameters,
        "ready_s": round(ready, 1),
        "first_update_s": round(first.seconds, 1),
        "update_s": round(seconds, 2),
        "tokens_per_s": round(first.tokens / seconds),
        "computed_tokens_per_s": round(computed / seconds),
        "tflop_per_s": round(operations / seconds / 1e12, 2),
        "gpu_peak_gib": round(watch.peak_gib, 1),
        "difference": round(float(distance.mean()), 5),
        "largest_difference": round(float(distance.max()), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--lora-rank", type=int, default=0, help="0 trains all weights")
    parser.add_argument("--tokens-per-micro-batch", type=int, default=16_384)
    parser.add_argument("--updates", type=int, default=3, help="after the first")
    parser.add_argument(
        "--computed",
        choices=["tree", "packed", "alone"],
        default="tree",
        help="each common prefix once, packed rows, or each row alone",
    )
    parser.add_argument("--log", type=Path, help="copy the learner's log there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments, Path(folder))
    kind = f"LoRA rank {arguments.lora_rank}" if arguments.lora_rank else "all weights"
    print(
        json.dumps(
            {
                "name": "step",
                "value": result["tokens_per_s"],
                "unit": f"tokens/s of {arguments.rows} rows, {arguments.shape}, {kind}",
                "peer": None,
                "ratio": None,
                **result,
            }
        )
    )


if __name__ == "__main__":
    main()
