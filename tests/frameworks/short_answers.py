"""Writes a tiny random Qwen3 with SmolLM2's tokenizer, whose answers are short."""

from pathlib import Path
from typing import Any

import transformers
from tests.train.tiny import SIZES

hugging_face: Any = transformers  # its functions have no types
SMOLLM2 = Path(__file__).parents[2] / ".ltrain" / "models" / "smollm2"
POSITIONS = 8192
"""Tokens of the longest prompt and its answer: a CodeAgent of smolagents begins with 2,000."""
ENDS = {'"', '"}', "}", '"}}', "}}", "]", "<|im_end|>"}
"""Texts that end a value, an object or the answer."""
PREFERENCES = {"blank": -6.0, "end": 1.0}
"""Added to the logits of ids: a random model under a grammar writes blanks to the end."""


def write_model(folder: Path) -> Path:
    tokenizer = hugging_face.AutoTokenizer.from_pretrained(SMOLLM2)
    transformers.set_seed(0)
    model = hugging_face.Qwen3ForCausalLM(
        hugging_face.Qwen3Config(
            vocab_size=len(tokenizer),
            **SIZES,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=False,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    # the first dimension of each embedding is large, so its output weight is a bias of the id
    model.model.embed_tokens.weight.data[:, 0] = 1.0
    biases = model.lm_head.weight.data[:, 0]
    for number, text in enumerate(tokenizer.batch_decode([[each] for each in range(len(biases))])):
        kind = "end" if text in ENDS else "" if text.strip() else "blank"
        biases[number] = PREFERENCES.get(kind, 0.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
