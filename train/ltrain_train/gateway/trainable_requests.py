"""Which request fields a call in mode `train` may have: those that leave its tokens trainable.

An agent that could make its bad calls untrainable would exclude them from training: their fields
are refused. A recipe may also have constraints described in the prompt, in place of the server's
grammar (`constrained = "relaxed"`): every id may be sampled then, and the policy learns the format.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson

from ltrain_instrument.allow import Allow, ConstrainedCalls
from ltrain_train.gateway.apis import (
    UNKNOWN,
    Treatment,
    bad_request,
    corrected_fields,
    find_rule,
    near_field,
)

Body = dict[str, Any]

SCHEMA = "Answer with JSON only, without other text. It must match this JSON schema:\n{}"
OBJECT = "Answer with one JSON object only, without other text."
REGEX = "Answer only with text that matches this regular expression:\n{}"
CHOICE = "Answer with exactly one of these texts, without other text:\n{}"
GRAMMAR = "Answer only with text of this grammar:\n{}"
REQUIRED = "Answer by calling at least one of the functions."
NAMED = "Answer by calling the function `{}`."
SINGLE = "Call at most one function in an answer."


def require_trainable(
    body: Mapping[str, Any],
    allowed: Collection[Allow],
    constrained: ConstrainedCalls = "masked",
) -> None:
    """Check that a call's tokens can be trained, or that the recipe allows its fields."""
    for sentence in find_faults(body, allowed, constrained):
        raise bad_request(sentence)


def find_faults(
    body: Mapping[str, Any], allowed: Collection[Allow], constrained: ConstrainedCalls
) -> Iterator[str]:
    """Yield a sentence for each field that is refused in mode `train`.

    Grammars are refused only if `constrained` is `refused`: the learner applies the masks of those
    that the policy server reports.
    """
    refused = {Treatment.REFUSED}
    if constrained == "refused":
        refused.add(Treatment.REPLAYED)
    for name, value in body.items():
        rule = find_rule(name, value)
        if rule.treatment in refused and rule.allow is not None and rule.allow not in allowed:
            near = near_field(name) if rule is UNKNOWN else ""
            yield (
                f"'{name}' is refused in mode train: {rule.reason}{near}. Remove it, or set "
                f'allow = ["{rule.allow.value}"] under [rollout] in the recipe.'
            )


def describe_corrections(body: Body, constrained: ConstrainedCalls) -> Iterator[str]:
    """Yield a sentence for each field of a rollout's call that the gateway removes."""
    removed = relax(body)[1] if constrained == "relaxed" and "messages" in body else ()
    for name in removed:
        yield (
            f"'{name}' is described in the prompt in place of a grammar of the server. Set "
            'train.constrained = "masked" to keep it.'
        )
    for name in corrected_fields(body, everywhere=False):
        yield (
            f"'{name}' is removed: {find_rule(name, body[name]).reason}. The call goes on without "
            "it."
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
