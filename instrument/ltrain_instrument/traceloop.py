"""What traceloop's instrumentor of the OpenAI client writes, put right.

Of responses it writes a request for a tool with the id of its item, and the tool's result with the
id of the call, so the two do not meet; and what the model thought as JSON of its summary. Of
streams it leaves out the count of reasoning tokens. To read a parsed answer it serialises it, of
which pydantic warns on the agent's stderr; it fails over usage without details. And it begins each
call with an event loop of its own, for an upload of pictures that has to be set up first.
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


def install() -> None:
    """Mend that instrumentor, once it is imported."""
    for module in _WRITERS:
        wrapt.when_imported(module)(_wrap)


def _wrap(module: ModuleType) -> None:
    if hasattr(module, "model_as_dict"):
        wrapt.wrap_function_wrapper(module, "model_as_dict", _as_dict)
    if hasattr(module, "run_async"):
        wrapt.wrap_function_wrapper(module, "run_async", partial(_run, module.Config))
    if hasattr(module, "_set_response_attributes"):
        wrapt.wrap_function_wrapper(module, "_set_response_attributes", _count)
    if hasattr(module, "_set_responses_json_messages"):
        writer = partial(_write, module.model_as_dict)
        wrapt.wrap_function_wrapper(module, "_set_responses_json_messages", writer)


def _as_dict(call: Call, instance: object, arguments: tuple[Any, ...], named: Json) -> Any:
    dump = getattr(arguments[0], "model_dump", None) if arguments else None
    if dump is None:
        return call(*arguments, **named)
    said = dump(warnings=False)
    if isinstance(usage := said.get("usage"), dict):
        said["usage"] = {name: count for name, count in usage.items() if count is not None}
    return said


def _run(
    config: Any, call: Call, instance: object, arguments: tuple[Any, ...], named: Json
) -> None:
    """Run what waits for nothing, unless an upload is set up, without a loop or a thread."""
    (work,) = arguments
    if config.upload_base64_image:
        call(work)
        return
    with suppress(StopIteration):
        work.send(None)


def _count(call: Call, instance: object, arguments: tuple[Any, ...], named: Json) -> Any:
    call(*arguments, **named)
    span, answer = arguments
    usage = answer.get("usage") if isinstance(answer, dict) else None
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    if isinstance(details, dict) and details.get("reasoning_tokens") is not None:
        span.set_attribute("gen_ai.usage.reasoning_tokens", details["reasoning_tokens"])


def _write(
    as_dict: Call, call: Call, instance: object, arguments: tuple[Any, ...], named: Json
) -> Any:
    told, *rest = arguments
    mended: Json = {}
    if isinstance(told.input, list):
        mended["input"] = [_item(as_dict(item)) for item in told.input]
    if told.output_blocks:
        blocks = told.output_blocks.items()
        mended["output_blocks"] = {name: _item(as_dict(block)) for name, block in blocks}
    return call(told.model_copy(update=mended), *rest, **named)


def _item(item: Json) -> Json:
    kind, summary = item.get("type"), item.get("summary")
    if kind == "function_call" and item.get("call_id"):
        return {**item, "id": item["call_id"]}
    if kind == "reasoning" and isinstance(summary, list):
        return {**item, "summary": "\n".join(str(part.get("text") or "") for part in summary)}
    return item
