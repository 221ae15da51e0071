"""An OpenAI-compatible server that responds according to a plan in the conversation itself.

A user's message contains the plan between double brackets, one step per turn of the model:

    How is it? [[weather(city=Paris) + weather(city=Rome); !search(query=x); It is sunny.]]

The model calls tools that are joined by `+` in one turn, and returns text as it is. A step that
starts with `!` gets a 500 on the first request. A part in `<>` after that is the model's reasoning:
`<Two cities.> weather(city=Paris)`. A step that starts with `~` stops in the middle of its answer,
until the client goes away. The current step follows from the turns that the model has had since the
plan, so any number of agents may use one server. `Model.tasks` has the plan of a sub-agent, by the
task that its first message contains.

The server supports chat completions and responses, complete and streamed, completions and
embeddings. Ids are unique. A request with `return_token_ids` gets token ids and log-probabilities
in vLLM's format.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PLAN = re.compile(r"\[\[(.+?)\]\]", re.DOTALL)
REASONING = re.compile(r"<(.+?)>\s*")
CALL = re.compile(r"([\w-]+)\(([^()]*)\)")
Json = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """The model's response in one turn."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments, as JSON, of each tool call."""
    fails_once: bool = False
    reasoning: str = ""
    stops: bool = False
    """Whether the answer stops in the middle."""
    is_delegated: bool = False
    """Whether it is of a sub-agent's plan, whose prompts have one more token."""

    @property
    def usage(self) -> Json:
        """The token counts of a chat completion."""
        prompt = USAGE["prompt_tokens"] + self.is_delegated
        return {**USAGE, "prompt_tokens": prompt, "total_tokens": prompt + 5}


def parse_plan(text: str) -> list[Step]:
    """Parse the last plan in a text; return an empty list if there is none."""
    plans = PLAN.findall(text)
    return [_step(part.strip()) for part in plans[-1].split(";")] if plans else []


def _step(text: str) -> Step:
    if text.startswith("~"):
        return replace(_step(text[1:]), stops=True)
    fails, text = text.startswith("!"), text.lstrip("! ")
    reasoning = REASONING.match(text)
    if reasoning:
        return replace(_step(text[reasoning.end() :]), fails_once=fails, reasoning=reasoning[1])
    calls = CALL.findall(text) if CALL.match(text) else []
    if not calls:
        return Step(text, fails_once=fails)
    return Step("", tuple((name, _arguments(arguments)) for name, arguments in calls), fails)


def _arguments(text: str) -> str:
    pairs = (part.split("=", 1) for part in text.split(",") if "=" in part)
    return json.dumps({name.strip(): _value(text.strip()) for name, text in pairs})


def _value(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


def current_step(messages: list[Json], tasks: Mapping[str, str]) -> Step:
    """Return the current step, by the number of turns after the message with the plan."""
    steps: list[Step] = []
    turns = 0
    for message in messages:
        if plan := _plan(message, tasks):
            steps, turns = plan, 0
        elif message.get("role") == "assistant":
            turns += 1
    return steps[turns] if turns < len(steps) else Step("Done.")


def _plan(message: Json, tasks: Mapping[str, str]) -> list[Step]:
    if message.get("role") not in ("user", "system", "developer"):
        return []
    text = _text(message)
    plans = (f"[[{plan}]]" for task, plan in tasks.items() if task in text)
    delegated = [replace(step, is_delegated=True) for step in parse_plan(next(plans, ""))]
    return parse_plan(text) or delegated


def _text(message: Json) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))


def _messages_of_items(items: Any) -> list[Json]:
    """Convert the items of a responses request to messages; adjacent calls are one turn."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Json] = []
    for item in items:
        kind = item.get("type") or "message"
        if kind == "message":
            messages.append(item)
        elif kind == "function_call" and (not messages or messages[-1] != {"role": "assistant"}):
            messages.append({"role": "assistant"})
        elif kind == "function_call_output":
            messages.append({"role": "tool"})
    return messages


def _step_of_request(path: str, body: Json, tasks: Mapping[str, str]) -> Step | None:
    if path.endswith("/responses"):
        return current_step(_messages_of_items(body["input"]), tasks)
    if path.endswith("/chat/completions"):
        step = current_step(body["messages"], tasks)
        asks_for_title = not body.get("tools") and "title generator" in _text(body["messages"][0])
        return Step("A title") if step.calls and asks_for_title else step
    if path.endswith("/completions"):
        return current_step([{"role": "user", "content": body["prompt"]}], tasks)
    return None


@dataclass(frozen=True)
class ReceivedRequest:
    """One request to the server."""

    path: str
    headers: dict[str, str]
    body: Json
    failed: bool
    """Whether the response was a planned 500."""
    step: Step | None
    """The step of the response; None for a request to no model."""

    @property
    def has_usage(self) -> bool:
        """Whether the response has token counts; a stream of chat completions may lack them."""
        options = self.body.get("stream_options") or {}
        streamed = self.body.get("stream") and not self.path.endswith("/responses")
        return bool(
            self.step and not self.failed and (not streamed or options.get("include_usage"))
        )


@dataclass
class Model:
    """The server, in threads of its own."""

    port: int = 0
    model_requests: list[ReceivedRequest] = field(default_factory=list)
    tasks: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    _ids: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _http: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(200, "application/json", json.dumps({"data": [{"id": "fake"}]}).encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                if self.path.endswith("/render"):  # vLLM's route for the sampling of a request
                    return self._send(*_json_response(_render(body)))
                step = _step_of_request(self.path, body, model.tasks)
                stops = step is not None and step.stops
                return self._send(*model.respond(self.path, headers, body), stops=stops)

            def _send(
                self, status: int, content_type: str, payload: bytes, stops: bool = False
            ) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                if stops:
                    self.wfile.write(_beginning(payload))
                    self.rfile.read(1)  # until the client goes away
                    self.close_connection = True
                else:
                    self.wfile.write(payload)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()

    def respond(self, path: str, headers: dict[str, str], body: Json) -> tuple[int, str, bytes]:
        step = _step_of_request(path, body, self.tasks)
        status, content_type, payload = self._respond(path, body, step)
        with self._lock:
            self.model_requests.append(ReceivedRequest(path, headers, body, status == 500, step))
        return status, content_type, payload

    def _respond(self, path: str, body: Json, step: Step | None) -> tuple[int, str, bytes]:
        number = next(self._ids)
        if path.endswith("/embeddings"):
            return _json_response(_embeddings(body))
        if step is None:
            return 404, "text/plain", b"no such route"
        if step.fails_once and self._fails_now(body):
            error = {"error": {"message": "planned to fail once", "type": "server_error"}}
            return 500, "application/json", json.dumps(error).encode()
        if path.endswith("/responses"):
            payload = _response(body, step, number)
            return (
                _event_stream(_response_events(payload))
                if body.get("stream")
                else _json_response(payload)
            )
        if not path.endswith("/chat/completions"):
            return _json_response(_text_completion(body, step, number))
        if body.get("stream"):
            return _event_stream([*_chunks(body, step, number), "[DONE]"], named=False)
        return _json_response(_completion(body, step, number))

    def _fails_now(self, body: Json) -> bool:
        key = json.dumps(body, sort_keys=True)
        with self._lock:
            if key in self.failed:
                return False
            self.failed.add(key)
            return True


def _render(body: Json) -> Json:
    """Return the sampling of a request: vLLM constrains strict tools."""
    tools = [tool["function"] for tool in body.get("tools") or ()]
    strict = [function["parameters"] for function in tools if function.get("strict")]
    outputs = {"json": strict[0]} if strict else None
    return {"token_ids": [1], "sampling_params": {"structured_outputs": outputs}}


def _beginning(payload: bytes) -> bytes:
    """Return half of a response, or the first two events of a stream."""
    events = payload.split(b"\n\n")
    return b"\n\n".join([*events[:2], b""]) if len(events) > 1 else payload[: len(payload) // 2]


def _json_response(payload: Json) -> tuple[int, str, bytes]:
    return 200, "application/json", json.dumps(payload).encode()


def _event_stream(events: list[Any], named: bool = True) -> tuple[int, str, bytes]:
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if named else ""
        lines.append(f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
    return 200, "text/event-stream", "".join(lines).encode()


def _tool_calls(step: Step, number: int) -> list[Json]:
    return [
        {
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for index, (name, arguments) in enumerate(step.calls)
    ]


USAGE: Json = {
    "prompt_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens": 5,
    "completion_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 12,
}
PROMPT_IDS = [1, 2, 3, 4, 5, 6, 7]
TOKEN_IDS = [11, 12, 13, 14, 15]
LOGPROBS = {"content": [{"token": f"t{n}", "logprob": -0.5, "top_logprobs": []} for n in TOKEN_IDS]}


def _completion(body: Json, step: Step, number: int) -> Json:
    message: Json = {"role": "assistant", "content": step.text or None}
    if step.reasoning:
        message["reasoning_content"] = step.reasoning
    if step.calls:
        message["tool_calls"] = _tool_calls(step, number)
    reason = "tool_calls" if step.calls else "stop"
    choice: Json = {"index": 0, "message": message, "finish_reason": reason}
    payload: Json = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [choice],
        "usage": step.usage,
    }
    if body.get("return_token_ids"):
        payload["prompt_token_ids"] = PROMPT_IDS
        choice |= {"token_ids": TOKEN_IDS, "logprobs": LOGPROBS}
    return payload


def _text_completion(body: Json, step: Step, number: int) -> Json:
    return {
        "id": f"cmpl-{number}",
        "object": "text_completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "text": step.text, "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    }


def _chunks(body: Json, step: Step, number: int) -> list[Json]:
    """Return a stream: role, text by words or calls in parts, finish reason, usage."""
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    if step.reasoning:
        deltas.append({"reasoning_content": step.reasoning})
    deltas += [{"content": word} for word in re.findall(r"\S+\s*", step.text)]
    for index, call in enumerate(_tool_calls(step, number)):
        function, arguments = call["function"], call["function"]["arguments"]
        first = {**call, "index": index, "function": {**function, "arguments": ""}}
        rest = {"index": index, "function": {"arguments": arguments}}
        deltas += [{"tool_calls": [first]}, {"tool_calls": [rest]}]
    choices: list[list[Json]] = [
        [{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas
    ]
    reason = "tool_calls" if step.calls else "stop"
    choices.append([{"index": 0, "delta": {}, "finish_reason": reason}])
    if body.get("return_token_ids"):
        choices[1][0] |= {"token_ids": TOKEN_IDS, "logprobs": LOGPROBS}
    head = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": body["model"],
    }
    chunks: list[Json] = [{**head, "choices": each} for each in choices]
    if body.get("return_token_ids"):
        chunks[0]["prompt_token_ids"] = PROMPT_IDS
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**head, "choices": [], "usage": step.usage})
    return chunks


def _response(body: Json, step: Step, number: int) -> Json:
    output: list[Json] = [
        {
            "type": "function_call",
            "id": f"fc_{number}_{index}",
            "call_id": call["id"],
            "status": "completed",
            **call["function"],
        }
        for index, call in enumerate(_tool_calls(step, number))
    ]
    if not output:
        text = {"type": "output_text", "text": step.text, "annotations": []}
        output = [
            {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        ]
    if step.reasoning:
        summary = [{"type": "summary_text", "text": step.reasoning}]
        output.insert(0, {"type": "reasoning", "id": f"rs_{number}", "summary": summary})
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "instructions": body.get("instructions"),
        "status": "completed",
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "usage": {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 2},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 12,
        },
    }


def _response_events(payload: Json) -> list[Json]:
    started = {**payload, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [{"type": "response.created", "response": started}]
    for index, item in enumerate(payload["output"]):
        item_position = {"output_index": index, "item_id": item["id"]}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        if item["type"] == "message":
            text = item["content"][0]["text"]
            text_position = {**item_position, "content_index": 0, "logprobs": []}
            events.append({"type": "response.output_text.delta", **text_position, "delta": text})
            events.append({"type": "response.output_text.done", **text_position, "text": text})
        elif item["type"] == "function_call":
            arguments = item["arguments"]
            events.append(
                {
                    "type": "response.function_call_arguments.delta",
                    **item_position,
                    "delta": arguments,
                }
            )
            events.append(
                {
                    "type": "response.function_call_arguments.done",
                    **item_position,
                    "name": item["name"],
                    "arguments": arguments,
                }
            )
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": payload})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _embeddings(body: Json) -> Json:
    inputs = body["input"]
    count = len(inputs) if isinstance(inputs, list) and inputs and isinstance(inputs[0], str) else 1
    rows = [{"object": "embedding", "index": n, "embedding": [0.1, 0.2, 0.3]} for n in range(count)]
    return {"object": "list", "data": rows, "model": body["model"], "usage": USAGE}
