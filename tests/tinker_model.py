"""A model directory whose tokenizer has whole texts as tokens, and a server that says them."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.tinker_server import TinkerServer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ltrain_train.policy import TinkerWeights

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MARKS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
END = MARKS.index("<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tokenizer(folder: Path, texts: Sequence[str] = ()) -> Tokenizer:
    """Write a tokenizer of bytes, marks and whole texts, and return it."""
    vocabulary = {text: number for number, text in enumerate((*MARKS, *BYTES))}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(each, special=True) for each in MARKS[:3]])
    made.add_tokens([AddedToken(each, normalized=False) for each in (*MARKS[3:], *texts)])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings["eos_token"] = "<|im_end|>"
    settings |= {"chat_template": TEMPLATE, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return made


def write_model(folder: Path, texts: Sequence[str] = (), base_model: str = "tiny") -> Tokenizer:
    """Write a model directory without weights: a Tinker server has them."""
    made = write_tokenizer(folder, texts)
    config = {"model_type": "llama", "max_position_embeddings": 256, "vocab_size": 517}
    (folder / "config.json").write_text(json.dumps(config))
    TinkerWeights(base_model=base_model).write(folder)
    return made


def teach(server: TinkerServer, *path: int) -> None:
    """Let the base model of a server continue each id of a path with the next one."""
    for last, following in pairwise(path):
        server.base[last] = -20.0
        server.base[last, following] = 20.0
