"""An OpenAI-compatible server that answers by a plan which the conversation itself carries.

A user's message holds the plan between double brackets, one step a turn of the model:

    How is it? [[weather(city=Paris) + weather(city=Rome); !search(query=x); It is sunny.]]

Calls joined by `+` are asked for in one turn, text is answered as it is, and a step that begins
with `!` gets a 500 the first time it is asked for. A step in `<>` after that is what the model
thinks: `<Two cities.> weather(city=Paris)`. Which step is due follows from the turns that
the model has had since, so any number of agents may talk to one server.

Chat completions and responses, whole and streamed, completions and embeddings; ids are unique. A
request with `return_token_ids` gets token ids and log-probabilities, as vLLM gives them.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PLAN = re.compile(r"\[\[(.+?)\]\]", re.DOTALL)
THOUGHT = re.compile(r"<(.+?)>\s*")
CALL = re.compile(r"([\w-]+)\(([^()]*)\)")
Json = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """What the model says at one turn."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments, JSON, of each tool."""
    fails_first: bool = False
    thought: str = ""


def plan(text: str) -> list[Step]:
    """Read the last plan in a text; none where it has none."""
    found = PLAN.findall(text)
    return [_step(part.strip()) for part in found[-1].split(";")] if found else []


def _step(text: str) -> Step:
    fails, text = text.startswith("!"), text.lstrip("! ")
    thought = THOUGHT.match(text)
    if thought:
        return replace(_step(text[thought.end() :]), fails_first=fails, thought=thought[1])
    calls = CALL.findall(text) if CALL.match(text) else []
    if not calls:
        return Step(text, fails_first=fails)
    return Step("", tuple((name, _arguments(given)) for name, given in calls), fails)


def _arguments(given: str) -> str:
    pairs = (part.split("=", 1) for part in given.split(",") if "=" in part)
    return json.dumps({name.strip(): value.strip() for name, value in pairs})


def due(messages: list[Json]) -> Step:
    """Give the step that is due: the turns after the message that holds the plan are counted."""
    steps: list[Step] = []
    turns = 0
    for message in messages:
        written = (
            plan(_text(message)) if message.get("role") in ("user", "system", "developer") else []
        )
        if written:
            steps, turns = written, 0
        elif message.get("role") == "assistant":
            turns += 1
    return steps[turns] if turns < len(steps) else Step("Done.")


def _text(message: Json) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))


def _turns_of_items(items: Any) -> list[Json]:
    """Give the items of a responses request as messages; calls side by side are one turn."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    found: list[Json] = []
    for item in items:
        kind = item.get("type") or "message"
        if kind == "message":
            found.append(item)
        elif kind == "function_call" and (not found or found[-1] != {"role": "assistant"}):
            found.append({"role": "assistant"})
        elif kind == "function_call_output":
            found.append({"role": "tool"})
    return found


def _due(path: str, body: Json) -> Step | None:
    if path.endswith("/responses"):
        return due(_turns_of_items(body["input"]))
    if path.endswith("/chat/completions"):
        return due(body["messages"])
    if path.endswith("/completions"):
        return due([{"role": "user", "content": body["prompt"]}])
    return None


@dataclass(frozen=True)
class Asked:
    """One request."""

    path: str
    headers: dict[str, str]
    body: Json
    failed: bool
    """Whether the answer was a planned 500."""
    step: Step | None
    """What it was answered; nothing where no model was asked."""

    @property
    def counted(self) -> bool:
        """Whether the answer had counts of tokens: a stream of chat completions by request."""
        asked = self.body.get("stream_options") or {}
        streamed = self.body.get("stream") and not self.path.endswith("/responses")
        return bool(self.step and not self.failed and (not streamed or asked.get("include_usage")))


@dataclass
class Model:
    """The server, in threads of its own."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
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
                self._send(*model.respond(self.path, headers, body))

            def _send(self, status: int, kind: str, answer: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

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
        step = _due(path, body)
        status, kind, answer = self._answer(path, body, step)
        with self._lock:
            self.asked.append(Asked(path, headers, body, status == 500, step))
        return status, kind, answer

    def _answer(self, path: str, body: Json, step: Step | None) -> tuple[int, str, bytes]:
        number = next(self._ids)
        if path.endswith("/embeddings"):
            return _whole(_embeddings(body))
        if step is None:
            return 404, "text/plain", b"no such route"
        if step.fails_first and self._fails(body):
            error = {"error": {"message": "planned to fail once", "type": "server_error"}}
            return 500, "application/json", json.dumps(error).encode()
        if path.endswith("/responses"):
            answer = _response(body, step, number)
            return _events(_response_events(answer)) if body.get("stream") else _whole(answer)
        if not path.endswith("/chat/completions"):
            return _whole(_text_completion(body, step, number))
        if body.get("stream"):
            return _events([*_chunks(body, step, number), "[DONE]"], named=False)
        return _whole(_completion(body, step, number))

    def _fails(self, body: Json) -> bool:
        asked = json.dumps(body, sort_keys=True)
        with self._lock:
            if asked in self.failed:
                return False
            self.failed.add(asked)
            return True


def _whole(answer: Json) -> tuple[int, str, bytes]:
    return 200, "application/json", json.dumps(answer).encode()


def _events(events: list[Any], named: bool = True) -> tuple[int, str, bytes]:
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if named else ""
        lines.append(f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
    return 200, "text/event-stream", "".join(lines).encode()


def _tool_calls(step: Step, number: int) -> list[Json]:
    return [
        {
            "id": f"call_{number}_{place}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for place, (name, arguments) in enumerate(step.calls)
    ]


USAGE = {
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
    if step.thought:
        message["reasoning_content"] = step.thought
    if step.calls:
        message["tool_calls"] = _tool_calls(step, number)
    reason = "tool_calls" if step.calls else "stop"
    choice: Json = {"index": 0, "message": message, "finish_reason": reason}
    answer: Json = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [choice],
        "usage": USAGE,
    }
    if body.get("return_token_ids"):
        answer["prompt_token_ids"] = PROMPT_IDS
        choice |= {"token_ids": TOKEN_IDS, "logprobs": LOGPROBS}
    return answer


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
    """Give a stream: the role, the text word by word or the calls in pieces, the end, the usage."""
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    if step.thought:
        deltas.append({"reasoning_content": step.thought})
    deltas += [{"content": word} for word in re.findall(r"\S+\s*", step.text)]
    for place, call in enumerate(_tool_calls(step, number)):
        function, arguments = call["function"], call["function"]["arguments"]
        first = {**call, "index": place, "function": {**function, "arguments": ""}}
        rest = {"index": place, "function": {"arguments": arguments}}
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
        chunks.append({**head, "choices": [], "usage": USAGE})
    return chunks


def _response(body: Json, step: Step, number: int) -> Json:
    output: list[Json] = [
        {
            "type": "function_call",
            "id": f"fc_{number}_{place}",
            "call_id": call["id"],
            "status": "completed",
            **call["function"],
        }
        for place, call in enumerate(_tool_calls(step, number))
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
    if step.thought:
        summary = [{"type": "summary_text", "text": step.thought}]
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


def _response_events(answer: Json) -> list[Json]:
    started = {**answer, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [{"type": "response.created", "response": started}]
    for place, item in enumerate(answer["output"]):
        at = {"output_index": place, "item_id": item["id"]}
        events.append({"type": "response.output_item.added", "output_index": place, "item": item})
        if item["type"] == "message":
            text = item["content"][0]["text"]
            spot = {**at, "content_index": 0, "logprobs": []}
            events.append({"type": "response.output_text.delta", **spot, "delta": text})
            events.append({"type": "response.output_text.done", **spot, "text": text})
        elif item["type"] == "function_call":
            given = item["arguments"]
            events.append({"type": "response.function_call_arguments.delta", **at, "delta": given})
            events.append(
                {
                    "type": "response.function_call_arguments.done",
                    **at,
                    "name": item["name"],
                    "arguments": given,
                }
            )
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    events.append({"type": "response.completed", "response": answer})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _embeddings(body: Json) -> Json:
    given = body["input"]
    count = len(given) if isinstance(given, list) and given and isinstance(given[0], str) else 1
    rows = [{"object": "embedding", "index": n, "embedding": [0.1, 0.2, 0.3]} for n in range(count)]
    return {"object": "list", "data": rows, "model": body["model"], "usage": USAGE}
