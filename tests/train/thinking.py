"""Writes a tiny Llama that thinks, calls a tool and has the chat template of Qwen3.

It was trained on a few lines: a chat of words, and a loop of tool calls whose arguments are JSON
without spaces. `python tests/train/thinking.py OUT` writes it in a minute.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

hugging_face: Any = transformers  # its functions have no types

MARKS = ["<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\nTools:' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- set thinking = message.reasoning_content or '' %}
        {%- if loop.index0 > ns.last and (loop.last or thinking) %}
            {{- '<think>\\n' + thinking.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- (message.content or '').strip('\\n') }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""The template of Qwen3 in short: it removes the thinking of answers before the last question, and
of later answers too if the client does not return it."""
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CHAT, COUNT = "say a word", "count to ten"
"""The questions that it answers with a word, and with tool calls."""
THOUGHTS = {CHAT: "The user wants a word.", COUNT: "I add one and look at the sum."}
WORD = "hello"
CALL = '<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call>'
TOOLS_HEAD = f"<|im_start|>system\nTools:\n{json.dumps(TOOL)}<|im_end|>\n"
TURNS, STEPS, PEAK = 6, 320, 3e-3


def answer(question: str) -> str:
    """Return the answer to a question, as the policy writes it."""
    words = WORD if question == CHAT else CALL
    return f"<think>\n{THOUGHTS[question]}\n</think>\n\n{words}<|im_end|>"


def write_thinking_model(out: Path) -> Path:
    """Write the trained model in fp32 and its tokenizer to the directory `out`, and return it."""
    tokenizer = _write_tokenizer(out)
    torch.manual_seed(0)
    config = hugging_face.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    model = hugging_face.LlamaForCausalLM(config)
    chats = [_ids(tokenizer, text) for text in _texts()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min(1, 2 * (STEPS - step) / STEPS)
        ids, labels = chats[step % len(chats)]
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.5f}", file=sys.stderr)
    model.save_pretrained(out)
    return out


def _texts() -> list[list[tuple[str, bool]]]:
    """Return chats as texts, each with whether the policy writes it; with and without thinking."""
    chats = []
    for question in (CHAT, COUNT):
        for keeps in (True, False):
            parts = [(_head(question), False)]
            if question == COUNT:
                parts.insert(0, (TOOLS_HEAD, False))
            for turn in range(TURNS):
                parts.append((answer(question), True))
                parts.append((_next(question, turn), False))
            if not keeps:
                parts = [(_stripped(text), False) for text, _ in parts[:-2]] + parts[-2:]
            chats.append(parts)
    return chats


def _stripped(text: str) -> str:
    return text.rpartition("</think>\n\n")[2].replace('":', '": ').replace(',"', ', "')


def _head(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def _next(question: str, turn: int) -> str:
    words = CHAT if question == CHAT else f"<tool_response>\n{turn}\n</tool_response>"
    gap = "\n"
    return f"\n<|im_start|>user{gap}{words}<|im_end|>\n<|im_start|>assistant\n"


def _ids(tokenizer: Any, parts: list[tuple[str, bool]]) -> tuple[Any, Any]:
    ids: list[int] = []
    labels: list[int] = []
    for text, sampled in parts:
        new = tokenizer.encode(text, add_special_tokens=False)
        ids += new
        labels += new if sampled else [-100] * len(new)
    return torch.tensor([ids]), torch.tensor([labels])


def _write_tokenizer(out: Path) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    texts = [text for parts in _texts() for text, _ in parts]
    for tag in (*MARKS, *TAGS):
        texts = [text.replace(tag, " ") for text in texts]
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = hugging_face.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    wrapped.add_special_tokens({"additional_special_tokens": MARKS})
    wrapped.add_tokens(TAGS)
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(out)
    return wrapped


if __name__ == "__main__":
    print(write_thinking_model(Path(sys.argv[1])))
