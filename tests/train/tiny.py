"""Writes a tiny random Llama and its word tokenizer, in the layout of transformers and vLLM.

Words `w0` to `w511` are the tokens 0 to 511: text is words between spaces, and a token decodes to
its word. `python tests/train/tiny.py OUT [SEED]` writes one.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

hugging_face: Any = transformers  # its functions have no types

WORDS = 512
SPECIAL = {
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "<sep>",
}
TEMPLATE = (
    "{% for message in messages %}"
    "{{ message['content'] or '' }}{% if not loop.last %}{{ ' <sep> ' }}{% endif %}"
    "{% endfor %}"
)


SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
"""The shape of a tiny model, in a configuration of transformers."""


def write_tokenizer(out: Path, more: Sequence[str] = ()) -> Any:
    """Write the tokenizer and its chat template: the contents, separated by `<sep>`.

    The tokens `more` have the last ids.
    """
    words = [f"w{i}" for i in range(WORDS)] + list(SPECIAL.values())
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = hugging_face.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
        **SPECIAL,
    )
    wrapped.add_tokens([*more])
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(out)
    return wrapped


def write_model(out: Path, seed: int = 0, *, more: Sequence[str] = (), tied: bool = False) -> Path:
    """Write weights of `seed` in fp32 and the tokenizer to the directory `out`, and return it.

    The output layer may be `tied` to the embedding; larger weights then keep the model from
    repeating its last token.
    """
    tokenizer = write_tokenizer(out, more)
    torch.manual_seed(seed)
    config = hugging_face.LlamaConfig(
        vocab_size=len(tokenizer),
        **SIZES,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        **({"initializer_range": 0.3} if tied else {}),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    hugging_face.LlamaForCausalLM(config).save_pretrained(out)
    return out


if __name__ == "__main__":
    print(write_model(Path(sys.argv[1]), *(int(seed) for seed in sys.argv[2:3])))
