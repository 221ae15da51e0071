"""Families of models: the tool parser that vLLM needs, and the switch for thinking."""

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelFamily:
    pattern: str
    """Regular expression of the names of its models, without case."""
    tool_parser: str
    """vLLM's parser of its tool calls."""
    thinking: str = ""
    """The variable of its chat template that switches thinking off; '' if there is none."""


MODEL_FAMILIES = (
    ModelFamily(r"qwen3[._-]?coder", "qwen3_xml"),
    ModelFamily(r"qwen[_-]?3", "hermes", "enable_thinking"),
    ModelFamily(r"qwen[_-]?2|qwq|smollm|hermes", "hermes"),
    ModelFamily(r"llama[_-]?4", "llama4_pythonic"),
    ModelFamily(r"llama", "llama3_json"),
    ModelFamily(r"[mcd]\w*stral|mixtral", "mistral"),
    ModelFamily(r"gpt-oss", "openai"),
    ModelFamily(r"glm[_-]?4", "glm45", "enable_thinking"),
    ModelFamily(r"granite[_-]?4", "granite4"),
    ModelFamily(r"granite", "granite"),
    ModelFamily(r"phi-?4-?mini", "phi4_mini_json"),
    ModelFamily(r"olmo[_-]?3", "olmo3"),
    ModelFamily(r"lfm2", "lfm2"),
)
"""The first whose pattern a name contains."""


def find_family(names: list[str], model: Path | None = None) -> ModelFamily | None:
    """Return the family of a model directory, else of one of these names of models."""
    for name in [*_own_names(model), *([] if model else names)]:
        for family in MODEL_FAMILIES:
            if re.search(family.pattern, name, re.IGNORECASE):
                return family
    return None


def _own_names(model: Path | None) -> list[str]:
    """Return the directory's name, and the type that its `config.json` has."""
    if model is None:
        return []
    try:
        config = json.loads((model / "config.json").read_text())
    except (OSError, ValueError):
        config = {}
    kind = config.get("model_type") if isinstance(config, dict) else None
    return [model.resolve().name, *([kind] if isinstance(kind, str) else [])]
