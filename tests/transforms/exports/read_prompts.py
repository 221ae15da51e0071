"""Read a parquet file by verl's own dataset: `python read_prompts.py FILE TOKENIZER CACHE`."""

import json
import sys

from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset

tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
config = OmegaConf.create(
    {
        "max_prompt_length": 64,
        "filter_overlong_prompts": True,
        "filter_overlong_prompts_workers": 1,
        "cache_dir": sys.argv[3],
    }
)
rows = RLHFDataset(sys.argv[1], tokenizer, config)  # type: ignore[arg-type]
items = [rows[n] for n in range(len(rows))]
for item in items:
    item.pop("dummy_tensor")
print(json.dumps(items))
