"""Corrects traceloop's instrumentor of the OpenAI client.

In responses it records a tool call with the id of its item, but the tool's result with the id of
the call, so the two do not match; and it records reasoning as JSON of its summary. In streams it
omits the count of reasoning tokens. It serialises a parsed response to read it, so that pydantic
warns on the agent's stderr, and it fails on usage without details. It also starts an event loop for
each call, to upload images, even if no upload is configured.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

import wrapt

_WRITERS = (
    "opentelemetry.instrumentation.openai.shared.chat_wrappers",
    "opentelemetry.instrumentation.openai.shared.completion_wrappers",
    "opentelemetry.instrumentation.openai.v1.responses_wrappers",
)

Call = Callable[..., Any]
Json = dict[str, Any]


def patch_traceloop() -> None:
    """Wrap functions of that instrumentor, once it is imported."""
    for module in _WRITERS:
        wrapt.when_imported(module)(_wrap)


def _wrap(module: ModuleType) -> None:
    if hasattr(module, "model_as_dict"):
        wrapt.wrap_function_wrapper(module, "model_as_dict", _as_dict)
    if hasattr(module, "run_async"):
        wrapt.wrap_function_wrapper(module, "run_async", partial(_run_synchronously, module.Config))
    if hasattr(module, "_set_response_attributes"):
        wrapt.wrap_function_wrapper(module, "_set_response_attributes", _record_reasoning_tokens)
    if hasattr(module, "_set_responses_json_messages"):
        writer = partial(_write_messages, module.model_as_dict)
        wrapt.wrap_function_wrapper(module, "_set_responses_json_messages", writer)


def _as_dict(call: Call, instance: object, args: tuple[Any, ...], kwargs: Json) -> Any:
    dump = getattr(args[0], "model_dump", None) if args else None
    if dump is None:
        return call(*args, **kwargs)
    dumped = dump(warnings=False)
    if isinstance(usage := dumped.get("usage"), dict):
        dumped["usage"] = {name: count for name, count in usage.items() if count is not None}
    return dumped


def _run_synchronously(
    config: Any, call: Call, instance: object, args: tuple[Any, ...], kwargs: Json
) -> None:
    """Run a coroutine that never waits, without an event loop, unless an upload is set up."""
    (work,) = args
    if config.upload_base64_image:
        call(work)
        return
    with suppress(StopIteration):
        work.send(None)


def _record_reasoning_tokens(
    call: Call, instance: object, args: tuple[Any, ...], kwargs: Json
) -> Any:
    call(*args, **kwargs)
    span, response = args
    usage = response.get("usage") if isinstance(response, dict) else None
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    if isinstance(details, dict) and details.get("reasoning_tokens") is not None:
        span.set_attribute("gen_ai.usage.reasoning_tokens", details["reasoning_tokens"])


def _write_messages(
    as_dict: Call, call: Call, instance: object, args: tuple[Any, ...], kwargs: Json
) -> Any:
    message_data, *rest = args
    corrections: Json = {}
    if isinstance(message_data.input, list):
        corrections["input"] = [_correct_item(as_dict(item)) for item in message_data.input]
    if message_data.output_blocks:
        blocks = message_data.output_blocks.items()
        corrections["output_blocks"] = {
            name: _correct_item(as_dict(block)) for name, block in blocks
        }
    return call(message_data.model_copy(update=corrections), *rest, **kwargs)


def _correct_item(item: Json) -> Json:
    kind, summary = item.get("type"), item.get("summary")
    if kind == "function_call" and item.get("call_id"):
        return {**item, "id": item["call_id"]}
    if kind == "reasoning" and isinstance(summary, list):
        return {**item, "summary": "\n".join(str(part.get("text") or "") for part in summary)}
    return item
