"""Renders messages with a model's chat template: the tokens of a prompt and of its answer."""

from pathlib import Path
from typing import Any

from ltrain_instrument.errors import LtrainError
from ltrain_transforms.rendering.chat import ChatMessage
from ltrain_transforms.traces import Fields, parse_json

TokenPair = tuple[list[int], list[int]]
"""The token ids of a prompt and of its response."""


class BadTokenizer(LtrainError, ValueError):
    """A folder that holds no tokenizer with a chat template."""


def load_tokenizer(folder: Path | None, chat_template: str | None = None) -> Any:
    """Load a tokenizer.

    Args:
        chat_template: the text that replaces its chat template.

    Raises:
        BadTokenizer: when the folder has no tokenizer, or the tokenizer has no chat template.
    """
    from transformers import AutoTokenizer

    if folder is None or not folder.is_dir():
        problem = "No tokenizer is named" if folder is None else f"{folder} is not a folder"
        raise BadTokenizer(f"{problem}. Pass the folder of a tokenizer: --tokenizer DIR.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise BadTokenizer(
            f"{folder} holds no tokenizer: {error}. Pass the folder of one: --tokenizer DIR."
        ) from error
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    if not tokenizer.chat_template:
        raise BadTokenizer(
            f"The tokenizer in {folder} has no chat template. Choose the tokenizer of a chat "
            "model, or add chat_template.jinja to the folder."
        )
    return tokenizer


def render_answer(
    tokenizer: Any, prompt: list[ChatMessage], answer: ChatMessage, tools: list[Fields]
) -> TokenPair | None:
    """Return the tokens of a prompt and of its answer; None if the template does not render them.

    The tokens of both together must begin with those of the prompt.
    """
    try:
        before = _render(tokenizer, prompt, tools, generation_prompt=True)
        both = _render(tokenizer, [*prompt, answer], tools, generation_prompt=False)
    # broad: a template raises jinja's errors on messages that it does not allow, and anything
    # on fields of other types; each such call is the drop `not_rendered`
    except Exception:
        return None
    after = _cut_after_eos(both[len(before) :], tokenizer.eos_token_id)
    return (before, after) if both[: len(before)] == before and after else None


def _render(
    tokenizer: Any, messages: list[ChatMessage], tools: list[Fields], *, generation_prompt: bool
) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        [_with_objects(message) for message in messages],
        tools=tools or None,
        add_generation_prompt=generation_prompt,
        tokenize=True,
        return_dict=False,
    )
    return ids


def _with_objects(message: ChatMessage) -> ChatMessage:
    """Return a message whose tool calls have their arguments as objects, as in vLLM's templates."""
    requests = [
        {**each, "function": {**each["function"], "arguments": _parsed(each["function"])}}
        for each in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": requests} if requests else message


def _parsed(function: Fields) -> Any:
    arguments = parse_json(function["arguments"] or "{}")
    return arguments if isinstance(arguments, dict) else function["arguments"]


def _cut_after_eos(answer: list[int], eos: int | None) -> list[int]:
    """Remove what the template writes after the end of a response, which no model samples."""
    return answer[: answer.index(eos) + 1] if eos in answer else answer
