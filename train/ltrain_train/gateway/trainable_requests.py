"""Which request fields a call in mode `train` may have: those that leave its tokens trainable.

An agent that could make its bad calls untrainable would exclude them from training. So a field is
either always allowed, allowed by the recipe, or refused. A recipe may also have constraints
described in the prompt, in place of the server's grammar (`constrained = "relaxed"`): every id may
be sampled then, and the policy learns the format.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson

from ltrain_instrument.allow import Allow, ConstrainedCalls
from ltrain_train.gateway.apis import bad_request
from ltrain_train.gateway.errors import Refused

Body = dict[str, Any]

NEUTRAL_SAMPLING: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Imposed in mode `train` on each parameter that a rollout key does not set."""

ALWAYS_ALLOWED = frozenset(
    {
        *(
            "model",
            "messages",
            "prompt",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "functions",
        ),
        *("function_call", "max_tokens", "max_completion_tokens", "stop", "n", "response_format"),
        *("stream", "stream_options", "stream_interval", "include_reasoning", "reasoning_effort"),
        *("logprobs", "top_logprobs", "return_token_ids", "seed", "user", "metadata", "store"),
        *("service_tier", "modalities", "verbosity", "prediction", "prompt_cache_key"),
        *("prompt_cache_retention", "safety_identifier", "session_id", "cache_salt"),
        *NEUTRAL_SAMPLING,  # imposed, whatever the agent asks for
    }
)
"""Fields that change neither the sampling distribution nor the recorded tokens, or whose values are
checked below. `stop` is allowed: the response is cut after its tokens were sampled."""

REQUIRED_ALLOW: dict[str, Allow] = {
    **dict.fromkeys(
        (
            *("structured_outputs", "guided_json", "guided_regex", "guided_choice"),
            *("guided_grammar", "guided_decoding_backend", "guided_whitespace_pattern"),
            *("logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "logits_processors"),
            *("use_beam_search", "length_penalty", "best_of", "thinking_token_budget"),
            *("watermarking", "vllm_xargs"),
        ),
        Allow.CONSTRAINED,
    ),
    **dict.fromkeys(
        (
            *("chat_template", "chat_template_kwargs", "continue_final_message"),
            *("add_generation_prompt", "add_special_tokens", "echo", "suffix", "documents"),
            *("truncate_prompt_tokens", "truncation_side"),
        ),
        Allow.TEMPLATE,
    ),
    **dict.fromkeys(
        (
            *("stop_token_ids", "ignore_eos", "include_stop_str_in_output"),
            *("skip_special_tokens", "spaces_between_special_tokens", "repetition_detection"),
        ),
        Allow.STOPPING,
    ),
    **dict.fromkeys(
        ("mm_processor_kwargs", "media_io_kwargs", "audio", "mm_payload", "prompt_embeds"),
        Allow.MULTIMODAL,
    ),
}
"""The exception that a recipe must allow for a field of vLLM's API."""

REASONS: dict[Allow, str] = {
    Allow.CONSTRAINED: "the learner cannot apply what it does to the sampling",
    Allow.CHOICES: "one call would have several answers",
    Allow.TEMPLATE: "the prompt, or the answer's beginning, would not be the policy's own",
    Allow.STOPPING: "the answer would not end where the policy ends it",
    Allow.MULTIMODAL: "the prompt's token ids would not hold it",
    Allow.EXTRA: "what it does to the sampling is not known",
}

GRAMMAR_FIELDS = ("response_format", "tool_choice", "structured_outputs")
"""Fields by which an agent asks for a grammar."""

SCHEMA = "Answer with JSON only, without other text. It must match this JSON schema:\n{}"
OBJECT = "Answer with one JSON object only, without other text."
REGEX = "Answer only with text that matches this regular expression:\n{}"
CHOICE = "Answer with exactly one of these texts, without other text:\n{}"
GRAMMAR = "Answer only with text of this grammar:\n{}"
REQUIRED = "Answer by calling at least one of the functions."
NAMED = "Answer by calling the function `{}`."
SINGLE = "Call at most one function in an answer."

TEXT_PARTS = frozenset({"text", "refusal", "thinking", "input_text", "output_text"})
"""Types of message parts that contain text."""


def require_trainable(
    body: Mapping[str, Any],
    allowed: Collection[Allow],
    constrained: ConstrainedCalls = "masked",
) -> None:
    """Check that a call's tokens can be trained, or that the recipe allows its fields.

    Grammars are refused only if `constrained` is `refused`: the learner applies the masks of those
    that the policy server reports.
    """
    for name, value in body.items():
        required = _required_allow(name, value)
        if name in GRAMMAR_FIELDS and constrained != "refused":
            continue
        if required is not None and required not in allowed:
            raise _not_trainable(name, required)


def _required_allow(name: str, value: Any) -> Allow | None:
    """Return what the recipe must allow for a field; None if the field is always allowed."""
    if value is None:
        return None
    if name == "n":
        return Allow.CHOICES if value != 1 else None
    if name == "messages":
        return Allow.MULTIMODAL if any(map(_is_multimodal, value)) else None
    if name == "response_format":
        return Allow.CONSTRAINED if value.get("type") != "text" else None
    if name == "tool_choice":
        return Allow.CONSTRAINED if value not in ("auto", "none") else None
    if name in ALWAYS_ALLOWED:
        return None
    return REQUIRED_ALLOW.get(name, Allow.EXTRA)


def _is_multimodal(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") not in TEXT_PARTS for part in content)


def _not_trainable(name: str, required: Allow) -> Refused:
    return bad_request(
        f"'{name}' is refused in mode train: {REASONS[required]}, so the call could not be "
        f'trained. Remove it, or set allow = ["{required.value}"] under [rollout] in the recipe.'
    )


def relax(body: Body) -> tuple[Body, Body]:
    """Return a chat without constraints and with their description, and the fields that it lost."""
    relaxed, removed = dict(body), {}
    for name in ("response_format", "structured_outputs", "parallel_tool_calls"):
        if (value := relaxed.pop(name, None)) is not None:
            removed[name] = value
    if body.get("tools"):
        if body.get("tool_choice") not in (None, "auto", "none"):
            removed["tool_choice"], relaxed["tool_choice"] = body["tool_choice"], "auto"
        relaxed["tools"] = [_without_strict(tool) for tool in body["tools"]]
    texts = list(_describe(removed))
    if texts:
        relaxed["messages"] = _instruct(body["messages"], "\n\n".join(texts))
    return relaxed, removed


def _describe(removed: Body) -> Iterator[str]:
    format_ = removed.get("response_format") or {}
    outputs = removed.get("structured_outputs") or {}
    schema = (format_.get("json_schema") or {}).get("schema") or outputs.get("json")
    if schema is not None:
        yield SCHEMA.format(schema if isinstance(schema, str) else orjson.dumps(schema).decode())
    elif format_.get("type") == "json_object" or outputs.get("json_object"):
        yield OBJECT
    if outputs.get("regex"):
        yield REGEX.format(outputs["regex"])
    if outputs.get("choice"):
        yield CHOICE.format("\n".join(outputs["choice"]))
    if grammar := outputs.get("grammar") or outputs.get("structural_tag"):
        yield GRAMMAR.format(grammar)
    choice = removed.get("tool_choice")
    if isinstance(choice, dict):
        yield NAMED.format((choice.get("function") or {}).get("name"))
    elif choice:
        yield REQUIRED
    if removed.get("parallel_tool_calls") is False:
        yield SINGLE


def _without_strict(tool: Body) -> Body:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    return {**tool, "function": {name: x for name, x in function.items() if name != "strict"}}


def _instruct(messages: list[Body], text: str) -> list[Body]:
    """Return the messages with a text at the end of the first system message, or before them."""
    if messages and messages[0].get("role") == "system":
        first, content = messages[0], messages[0].get("content")
        if isinstance(content, list):
            joined: Any = [*content, {"type": "text", "text": text}]
        else:
            joined = f"{content}\n\n{text}" if content else text
        return [{**first, "content": joined}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
