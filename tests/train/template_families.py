"""Chat templates in the shapes of those of model families, each short and with the family's traits.

A family also has what a policy of it writes, and the text of the messages that follow an answer. It
is None where a prompt cannot continue the ids of the answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "chat_templates"
Message = dict[str, Any]
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """An answer of the policy."""

    thought: str
    text: str
    calls: Sequence[tuple[str, str]]
    """The name of a tool and its arguments as the policy writes them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """A chat template, what a policy of it writes, and what follows an answer."""

    name: str
    template: str
    write: Callable[[Written], str]
    """Returns an answer with its end."""
    turns: dict[str, str]
    """The text of a message by its role; a role that is absent raises."""
    generate: str
    """The beginning of an answer."""
    generate_after_tools: str | None = None
    """The beginning of an answer after results of tools; None: the same."""
    marks: tuple[str, ...]
    """The texts that are one token."""
    gap: str = ""
    """The text between an answer and the next message."""
    tools: tuple[str, str] = ("", "")
    """The texts around consecutive results of tools."""
    ends: tuple[str, ...] = ()
    """The beginnings of messages that end the answer before them."""
    max_calls: int = 2
    strips_right: bool = False
    """Whether its marks remove the white space after them."""
    is_safe: Callable[[Body, Sequence[Message]], bool] = lambda body, new: True
    """Whether a prompt with these new messages can continue an earlier one."""

    def tail(self, body: Body, new: Sequence[Message]) -> str | None:
        """Return the text that follows an answer; None if it cannot be continued."""
        if not self.is_safe(body, new) or any(each["role"] not in self.turns for each in new):
            return None
        text = self.gap
        for role, group in groupby(new, lambda each: str(each["role"])):
            turns = "".join(self.turns[role].replace("{}", each["content"]) for each in group)
            text += self.tools[0] + turns + self.tools[1] if role == "tool" else turns
        for end in self.ends:
            text = text.removeprefix(end)
        after_tools = new[-1]["role"] == "tool" and self.generate_after_tools
        return text + (after_tools or self.generate)


def think(answer: Written) -> str:
    return f"<think>\n{answer.thought}\n</think>\n\n" if answer.thought else ""


def hermes(end: str) -> Callable[[Written], str]:
    """Return what writes tool calls as Qwen does."""

    def write(answer: Written) -> str:
        calls = (
            f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
            for name, arguments in answer.calls
        )
        return think(answer) + answer.text + "".join(calls) + end

    return write


def as_list(before: str, end: str) -> Callable[[Written], str]:
    """Return what writes all tool calls as one list, as Mistral does, or as one object."""

    def write(answer: Written) -> str:
        calls = ", ".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in answer.calls)
        return answer.text + (f"{before}[{calls}]" if calls else "") + end

    return write


def read(name: str) -> str:
    """Return a template."""
    return (FOLDER / f"{name}.jinja").read_text().rstrip()


CHATML = ("<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CHATML_TURNS = {
    "system": "<|im_start|>system\n{}<|im_end|>\n",
    "user": "<|im_start|>user\n{}<|im_end|>\n",
    "tool": "\n<tool_response>\n{}\n</tool_response>",
}
CHATML_TOOLS = ("<|im_start|>user", "<|im_end|>\n")


def has_system(body: Body) -> bool:
    return bool(body["messages"][0]["role"] == "system")


def roles(messages: Sequence[Message]) -> list[str]:
    return [str(each["role"]) for each in messages]


def write_llama(answer: Written) -> str:
    calls = "".join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in answer.calls)
    return (calls or answer.text) + "<|eot_id|>"


def write_deepseek(answer: Written) -> str:
    calls = "".join(f'{{"arguments": {a}, "name": "{n}"}}' for n, a in answer.calls)
    called = f"<|tool_calls_begin|>{calls}<|tool_calls_end|>" if calls else answer.text
    return f"{answer.thought}\n</think>{called}<|end_of_sentence|>"


def write_glm(answer: Written) -> str:
    calls = "".join(f"\n<tool_call>{n}{a}</tool_call>" for n, a in answer.calls)
    end = "<|observation|>" if calls else "<|user|>"
    return f"\n<think>{answer.thought}</think>\n{answer.text}{calls}{end}"


def write_gpt_oss(answer: Written) -> str:
    thought = f"<|channel|>analysis<|message|>{answer.thought}<|end|><|start|>assistant"
    if not answer.calls:
        return f"{thought}<|channel|>final<|message|>{answer.text}<|return|>"
    name, arguments = answer.calls[0]
    return f"{thought} to=functions.{name}<|channel|>commentary json<|message|>{arguments}<|call|>"


FAMILIES = (
    Family(
        name="Qwen 2.5: a default system prompt, results of tools merged into one message",
        template=read("qwen2"),
        write=hermes("<|im_end|>"),
        turns=CHATML_TURNS,
        tools=CHATML_TOOLS,
        gap="\n",
        generate="<|im_start|>assistant\n",
        marks=(*CHATML, *TAGS),
    ),
    Family(
        name="Qwen 3: removes the thinking of earlier answers",
        template=read("qwen3"),
        write=hermes("<|im_end|>"),
        turns=CHATML_TURNS,
        tools=CHATML_TOOLS,
        gap="\n",
        generate="<|im_start|>assistant\n",
        marks=(*CHATML, *TAGS),
    ),
    Family(
        name="SmolLM 3: a date, a system prompt that changes the beginning of each answer",
        template=read("smollm3"),
        write=hermes("<|im_end|>"),
        turns=CHATML_TURNS | {"tool": CHATML_TURNS["user"]},
        gap="\n",
        generate="<|im_start|>assistant\n",
        marks=(*CHATML, *TAGS),
        is_safe=lambda body, new: (
            "/no_think" not in str(body["messages"][0]["content"]) or not has_system(body)
        ),
    ),
    Family(
        name="Llama 3: a date, one tool call at a time, results as JSON",
        template=read("llama3"),
        write=write_llama,
        turns={
            "system": "<|start_header_id|>system<|end_header_id|>\n\n{}<|eot_id|>",
            "user": "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>",
            "tool": '<|start_header_id|>ipython<|end_header_id|>\n\n"{}"<|eot_id|>',
        },
        generate="<|start_header_id|>assistant<|end_header_id|>\n\n",
        marks=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        max_calls=1,
    ),
    Family(
        name="Mistral 3: tools and system prompt at the last question, alternating roles",
        template=read("mistral"),
        write=as_list("[TOOL_CALLS] ", "</s>"),
        turns={"user": "[INST] {}[/INST]", "tool": "[TOOL_RESULTS] {}[/TOOL_RESULTS]"},
        generate="",
        marks=("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
        is_safe=lambda body, new: (
            not ("user" in roles(new) and (has_system(body) or body.get("tools")))
            and roles(new).count("user") < 2
            and not ({"user", "tool"} <= {*roles(new)})
        ),
    ),
    Family(
        name="Gemma: roles must alternate, no tools, the system prompt in the first question",
        template=read("gemma"),
        write=as_list("", "<end_of_turn>"),
        turns={"user": "<start_of_turn>user\n{}<end_of_turn>\n"},
        gap="\n",
        generate="<start_of_turn>model\n",
        marks=("<bos>", "<start_of_turn>", "<end_of_turn>"),
        max_calls=0,
        is_safe=lambda body, new: len(new) == 1,
    ),
    Family(
        name="Phi 3: marks that remove the white space after them",
        template=read("phi3"),
        write=as_list("", "<|end|>"),
        turns={role: f"<|{role}|>\n{{}}<|end|>\n" for role in ("system", "user")},
        generate="<|assistant|>\n",
        marks=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"),
        max_calls=0,
        strips_right=True,
    ),
    Family(
        name="Phi 4: nothing between two messages",
        template=read("phi4"),
        write=as_list("", "<|im_end|>"),
        turns={role: f"<|im_start|>{role}<|im_sep|>{{}}<|im_end|>" for role in ("system", "user")},
        generate="<|im_start|>assistant<|im_sep|>",
        marks=(*CHATML, "<|im_sep|>"),
        max_calls=0,
    ),
    Family(
        name="DeepSeek R1 distilled: the last system prompt at the beginning, odd second results",
        template=read("deepseek"),
        write=write_deepseek,
        turns={
            "user": "<|User|>{}",
            "tool": "<|tool_output_begin|>{}<|tool_output_end|>",
        },
        tools=("<|tool_outputs_begin|>", ""),
        generate="<|Assistant|><think>\n",
        generate_after_tools="<|tool_outputs_end|>",
        max_calls=1,
        marks=(
            *("<|begin_of_sentence|>", "<|end_of_sentence|>", "<|User|>", "<|Assistant|>"),
            *("<|tool_outputs_begin|>", "<|tool_outputs_end|>", "<think>", "</think>"),
            *("<|tool_output_begin|>", "<|tool_output_end|>"),
        ),
        is_safe=lambda body, new: (
            "tool" not in roles(new) or roles(body["messages"]).count("tool") == 1
        ),
    ),
    Family(
        name="GLM 4.5: the beginning of the next message ends an answer",
        template=read("glm"),
        write=write_glm,
        turns={
            "system": "<|system|>\n{}",
            "user": "<|user|>\n{}",
            "tool": "\n<tool_response>\n{}\n</tool_response>",
        },
        tools=("<|observation|>", ""),
        ends=("<|user|>", "<|observation|>"),
        generate="<|assistant|>",
        marks=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        is_safe=lambda body, new: new[0]["role"] != "system",
    ),
    Family(
        name="gpt-oss: another end of final answers in the history, results named by the call",
        template=read("gpt_oss"),
        write=write_gpt_oss,
        turns={
            "system": "<|start|>system<|message|>{}<|end|>",
            "user": "<|start|>user<|message|>{}<|end|>",
            "tool": '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"{}"<|end|>',
        },
        generate="<|start|>assistant",
        marks=(
            *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"),
            "<|endoftext|>",
        ),
        max_calls=1,
        is_safe=lambda body, new: new[0]["role"] == "tool",
    ),
)
