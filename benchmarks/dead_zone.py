"""Learning rates at which updates are lost when a model's weights are rounded to bf16."""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file

MODEL = Path(".ltrain/models/smollm2")
STEPS = 20
"""Optimizer steps. Adam changes a parameter by about the rate; over steps this adds up as noise."""
RANK, SCALE = 16, 2.0
"""Of the adapter."""
RATES = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 2e-4, 5e-4, 1e-3)


def full_change(weight: torch.Tensor, rate: float) -> torch.Tensor:
    """Return a change of all weights after `STEPS` optimizer steps."""
    return torch.mul(torch.randn_like(weight).sign(), rate * STEPS**0.5)


def adapter_change(weight: torch.Tensor, rate: float) -> torch.Tensor:
    """Return the change by an adapter after `STEPS` optimizer steps; its second factor was 0."""
    rows, columns = weight.shape
    first = (2 * torch.rand(RANK, columns) - 1) / columns**0.5
    return torch.matmul(SCALE * full_change(torch.empty(rows, RANK), rate), first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    files = sorted(parser.parse_args().model.glob("*.safetensors"))
    tensors = {name: x for file in files for name, x in load_file(file).items()}
    weights = [
        x.to(torch.bfloat16).float()
        for name, x in tensors.items()
        if x.dim() == 2 and "embed" not in name
    ]
    if not weights:
        raise SystemExit(f"There are no weights in {MODEL}. Run `make model` first.")
    torch.manual_seed(0)
    for name, make_change in (("LoRA", adapter_change), ("all weights", full_change)):
        for rate in RATES:
            moved = along = length = count = 0.0
            for weight in weights:
                change = make_change(weight, rate)
                served = (weight + change).to(torch.bfloat16).float() - weight
                moved += float((served != 0).sum())
                along += float((served * change).sum())
                length += float((change * change).sum())
                count += weight.numel()
            print(f"{name:12} {rate:.0e}  moved {moved / count:4.0%}  served {along / length:4.0%}")


if __name__ == "__main__":
    main()
