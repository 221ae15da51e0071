"""A fake vLLM at the process border: an HTTP server that answers as vLLM 0.32 does.

An answer repeats the words of the last user message, or of the prompt; word `wN` is token N, and
`hN` one that a parser holds back, so that its chunk of a stream says nothing. Log-probabilities are
`logprob(token)`, floats that float32 holds exactly. Words steer it: `weights` becomes `wN` for the
loaded version N; `slow` takes a second, in a stream a token; `stuck` waits a minute for the client
to go away; `boom` fails with status 500, `once` does so the first time, `wrong` with 400, `long`
with 400 and vLLM's sentence on too many tokens;
`vanish` ends the connection in mid-stream; `zip` compresses the answer; `die` ends the process;
`vary` adds its index to the tokens of each of `n` choices. A chat's `think` adds reasoning and
`call` two tool calls; `cut` ends an answer at its length, and `matched` where that text was
sampled. A model `NAME@N` is an adapter of that name, and version N of `weights`; without the
adapter it is unknown. The id of a chat is the number of its messages. As a program it takes vLLM's
arguments.

Its GPU is a lock on the file FAKE_GPU, which it holds while it is awake. It fails if another
process holds the lock, and refuses to answer or to load anything while it sleeps.
"""

import contextlib
import fcntl
import gzip
import hashlib
import json
import math
import os
import signal
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Self

SLOW = 1.0
GPU = os.environ.get("FAKE_GPU")
MAX_MODEL_LEN = 4096
REASONING = "let me see"
CALLS: list[dict[str, Any]] = [
    {"id": f"call-{city}", "type": "function", "function": {"name": "weather", "arguments": text}}
    for city, text in (("rome", '{"city": "Rome"}'), ("oslo", '{"city": "Oslo"}'))
]
TOO_LONG = f"This model's maximum context length is {MAX_MODEL_LEN} tokens. However, it was more."


def logprob(token: int) -> float:
    """Return the log-probability that the server reports for a token, as float32 holds it."""
    return float(struct.unpack("<f", struct.pack("<f", -0.1 - token / 7))[0])


class Server(ThreadingHTTPServer):
    """Keeps as many connections waiting as vLLM's server, while this process is not scheduled."""

    request_queue_size = 2048


class UnixServer(Server):
    """Listens on a unix socket, as vLLM does with --uds."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # that of HTTP wants host and port


class FakeVllm:
    """Serves on a free port or a unix socket; keeps the bodies, paths and raw answers it has seen.

    `at` is a port of loopback, 0 for any free one, or a socket's path.
    """

    def __init__(self, at: int | Path = 0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[bytes] = []
        self.admin: list[tuple[str, Any]] = []
        self.weights = "default"
        self.knows_token_ids = True
        """Whether it takes requests that ask for them."""
        self.knows_logprobs = True
        """Whether its chats have log-probabilities; else requests for them are refused."""
        self.delays = (0.0, 0.0)
        """Seconds before it answers a call without an adapter, and with one."""
        self.turns: AbstractContextManager[Any] = contextlib.nullcontext()
        """What a call holds for its delay; with a lock it answers one call at a time."""
        self.adapters: dict[str, str] = {}
        """The folders of the loaded adapters, by name."""
        self.refuse_adapters = 0
        """How many adapters it refuses from now on."""
        self.places: int | None = None
        """How many adapters it can hold; None: any number."""
        self.refuse_reload = 0
        """How many reloads it refuses from now on."""
        self.refuse_swap = 0
        """How many swaps of staged weights it refuses from now on."""
        self.received: dict[str, str] = {}
        """The SHA-256 of each tensor that it read last, for requests that want it."""
        self.obstacle = ""
        """Why it cannot stage weights; '': it can."""
        self.sick = False
        """Whether its engine is dead: it answers, health too, with status 500 and more."""
        self.faulty: set[str] = set()
        """Models whose calls fail with status 500."""
        self.health_delay = 0.0
        """Seconds before it answers a request for its health."""
        self.model_list: str | None = None
        """Its answer to /v1/models; None: its model."""
        self.redirect: str | None = None
        """Where it redirects every call to; None: nowhere."""
        self.garbage: str | None = None
        """What it answers to every call, with status 200; None: as vLLM does."""
        self.structured_outputs: dict[str, Any] | None = {"reasoning_parser": ""}
        """Its settings of structured output; None: it lacks the route that reports them."""
        self.rendered: list[dict[str, Any]] = []
        """The requests whose sampling it returned."""
        self.template: Callable[[dict[str, Any]], list[int]] | None = None
        """Returns the ids of a chat's prompt, unless the request has them; None: one id a word."""
        self.takes_ids = True
        """Whether it reads the ids of a prompt in a request."""
        self.tokenized: list[dict[str, Any]] = []
        """The prompts whose tokens it counted."""
        self.asleep: set[str] = set()
        """The parts of its memory that sleep: `weights` and `kv_cache`."""
        self._gpu = os.open(GPU, os.O_RDWR | os.O_CREAT) if GPU else os.memfd_create("gpu")
        self.take_gpu()
        self.aborted = threading.Event()
        """Set when a client goes away in mid-answer."""
        if isinstance(at, Path):
            self._server: ThreadingHTTPServer = UnixServer(str(at), _handler(self, nagle=True))  # type: ignore[arg-type]
        else:
            self._server = Server(("127.0.0.1", at), _handler(self))
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take_gpu(self) -> None:
        """Take the memory of the GPU, or fail as vLLM does."""
        try:
            fcntl.flock(self._gpu, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MemoryError("CUDA out of memory") from None

    def sleep(self) -> None:
        self.asleep = {"weights", "kv_cache"}
        fcntl.flock(self._gpu, fcntl.LOCK_UN)

    def wake_up(self, part: str) -> None:
        if self.asleep:
            self.take_gpu()
        self.asleep.discard(part)

    def render(self, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the sampling of a request, with the grammar that vLLM would apply."""
        format_, tools = body.get("response_format") or {}, body.get("tools") or []
        outputs = body.get("structured_outputs")
        if format_.get("type") == "json_schema":
            outputs = {"json": format_["json_schema"]["schema"]}
        elif format_.get("type") == "json_object":
            outputs = {"json_object": True}
        elif tools and (
            body.get("tool_choice") not in (None, "auto", "none")
            or any(tool["function"].get("strict") for tool in tools)
        ):
            outputs = {"json": tools[0]["function"]["parameters"]}
        sampling: dict[str, Any] = {"structured_outputs": outputs, "stop_token_ids": []}
        ids = self.template(body) if self.template else [1]
        rendered = {"token_ids": ids, "sampling_params": sampling}
        return 200, rendered if _is_chat(body) else [rendered]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        os.close(self._gpu)


def _handler(fake: FakeVllm, nagle: bool = False) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = not nagle  # a unix socket has no such option

        def log_message(self, *args: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            if self.path == "/health":
                time.sleep(fake.health_delay)
                return self._json(503 if fake.sick else 200, {})
            if self.path == "/weight_info":
                return self._json(200, {"weight_version": fake.weights})
            if self.path == "/is_sleeping":
                return self._json(200, {"is_sleeping": bool(fake.asleep)})
            if self.path == "/version":
                return self._json(200, {"version": "0.32.0"})
            if self.path == "/server_info?config_format=json":
                settings = {"structured_outputs_config": fake.structured_outputs}
                found = fake.structured_outputs is not None
                return self._json(200 if found else 404, {"vllm_config": settings} if found else {})
            if fake.model_list is not None:
                return self._json(200, fake.model_list)
            model = {"id": "policy", "max_model_len": MAX_MODEL_LEN}
            return self._json(200, {"object": "list", "data": [model]})

        def do_POST(self) -> None:
            body = json.loads(self._body() or b"null")
            if self.path == "/tokenize":
                return self._tokenize(body)
            if self.path.endswith("/render"):
                fake.rendered.append(body)
                return self._json(*fake.render(body))
            if not self.path.endswith("/completions"):
                return self._admin(body)
            sick = fake.sick  # a test may change it as soon as it sees the request
            fake.requests.append(body)
            if fake.template is not None and _is_chat(body):
                sent = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
                ids = sent if sent and fake.takes_ids else fake.template(body)
                body = {**body, "prompt_ids": ids}
            if fake.asleep:
                return self._json(500, {"error": {"message": "the engine sleeps"}})
            if fake.redirect is not None:
                self.send_response(307)
                self.send_header("location", fake.redirect + self.path)
                self.send_header("content-length", "0")
                return self.end_headers()
            fake.headers.append({name.lower(): text for name, text in self.headers.items()})
            model = str(body["model"])
            if "@" in model and model not in fake.adapters:
                error = {"message": f"The model `{model}` does not exist.", "code": 404}
                return self._json(404, {"error": error})
            with fake.turns:
                if not self._has_client():
                    return None
                time.sleep(fake.delays[model in fake.adapters])
            loaded = model.replace("@", "/v") if "@" in model else fake.weights
            version = f"w{loaded.rpartition('/v')[2]}"
            words = [version if word == "weights" else word for word in _words(body)]
            if "die" in words:
                os.kill(os.getpid(), signal.SIGKILL)
            if body.get("return_token_ids") and not fake.knows_token_ids:
                return self._json(400, {"error": {"message": "unknown field", "code": 400}})
            if body.get("logprobs") is not None and not fake.knows_logprobs:
                return self._json(400, {"error": {"message": "no logprobs", "code": 400}})
            if model in fake.faulty:
                return self._json(500, {"error": {"message": "no such layer"}})
            if sick or "boom" in words or ("once" in words and fake.requests.count(body) == 1):
                return self._json(500, {"error": {"message": "the engine is dead"}})
            if "hangup" in words and fake.requests.count(body) == 1:
                self.close_connection = True  # as a server does with a connection that was idle
                self.connection.shutdown(socket.SHUT_RDWR)
                return None
            if "long" in words:
                return self._json(400, {"error": {"message": TOO_LONG, "code": 400}})
            if "wrong" in words:
                return self._json(400, {"error": {"message": "a wrong request", "code": 400}})
            if fake.garbage is not None:
                return self._json(200, fake.garbage)
            try:
                return self._stream(body, words) if body.get("stream") else self._whole(body, words)
            except OSError:
                fake.aborted.set()

        def _body(self) -> bytes:
            if "content-length" in self.headers:
                return self.rfile.read(int(self.headers["content-length"]))
            chunks = []
            while size := int(self.rfile.readline() or b"0", 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            return b"".join(chunks)

        def _tokenize(self, body: dict[str, Any]) -> None:
            fake.tokenized.append(body)
            if "wrong" in _words(body):
                return self._json(400, {"error": {"message": "a wrong request", "code": 400}})
            if fake.garbage is not None:
                return self._json(200, fake.garbage)
            count = sum(len(str(each.get("content")).split()) for each in body["messages"])
            return self._json(200, {"count": count, "max_model_len": MAX_MODEL_LEN, "tokens": []})

        def _admin(self, body: Any) -> None:
            fake.admin.append((self.path, body))
            if self.path.startswith("/sleep?"):
                fake.sleep()
                return self._json(200, {"status": "sleeping", "level": 1})
            if self.path.startswith("/wake_up?tags="):
                try:
                    fake.wake_up(self.path.partition("=")[2])
                except MemoryError as error:
                    return self._json(500, {"error": str(error)})
                return self._json(200, {"status": "sleeping" if fake.asleep else "awake"})
            if "weights" in fake.asleep and not self.path.startswith("/resume"):
                return self._json(500, {"error": "the weights are not in the GPU's memory"})
            if self.path == "/collective_rpc":
                return self._call_workers(body["method"], body.get("kwargs", {}))
            if self.path.endswith("_lora_adapter"):
                return self._adapter(body["lora_name"], body.get("lora_path"))
            if self.path == "/update_weight_version":
                fake.weights = body["new_version"]
            return self._json(200, {"success": True})

        def _call_workers(self, method: str, arguments: dict[str, str]) -> None:
            """Answer as vLLM does, of which a worker returns text."""
            if DIES and DIES.exists() and DIES.read_text() == method:
                DIES.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            if RELOAD and method in ("reload_weights", "stage_weights"):
                print("reloading", flush=True)
                time.sleep(RELOAD)
            if method in ("reload_weights", "staged") and fake.refuse_reload:
                fake.refuse_reload -= 1
                return self._json(500, {"error": "no such weights"})
            if method == "swap_weights" and fake.refuse_swap:
                fake.refuse_swap -= 1
                return self._json(500, {"error": "no such layer"})
            if method in ("stage_weights", "reload_shared"):
                try:
                    fake.received = read_tensors(**arguments)
                except OSError as error:
                    return self._json(500, {"error": str(error)})
            answers = {
                "stage_weights": fake.obstacle,
                "staged": "ready",
                "staged_digests": fake.received,
                "reload_shared": fake.received,
            }
            return self._json(200, {"results": [answers.get(method)]})

        def _adapter(self, name: str, path: str | None) -> None:
            """Answer as vLLM does, which has text in its answers of status 200."""
            if path is None:
                known = fake.adapters.pop(name, None)
                return self._json(200 if known else 404, f"{name} removed" if known else "{}")
            if fake.refuse_adapters:
                fake.refuse_adapters -= 1
                return self._json(500, {"error": {"message": "no such adapter"}})
            if fake.places is not None and fake.places <= len(fake.adapters):
                return self._json(507, {"error": {"message": "all places are taken"}})
            if name in fake.adapters:
                message = f"The lora adapter '{name}' has already been loaded."
                return self._json(400, {"error": {"message": message}})
            fake.adapters[name] = path
            return self._json(200, f"Success: LoRA adapter '{name}' added successfully.")

        def _whole(self, body: dict[str, Any], words: list[str]) -> None:
            steps = 5 if "slow" in words else 300 if "stuck" in words else 0
            for _ in range(steps):
                time.sleep(SLOW / 5)
                self._require_client()
            tokens = _tokens(words)
            choices = [_choice(index, words, body) for index in range(body.get("n") or 1)]
            usage = {
                "prompt_tokens": len(words),
                "completion_tokens": len(tokens),
                "prompt_tokens_details": {"cached_tokens": 1},
                "completion_tokens_details": None,
            }
            ids = _prompt_ids(body, words) if _is_chat(body) else {}
            answer = {**_head(body), "choices": choices, "usage": usage, **ids}
            self._json(200, answer, zipped="zip" in words)

        def _has_client(self) -> bool:
            try:
                found: bytes = self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            return found != b""

        def _require_client(self) -> None:
            if not self._has_client():
                raise ConnectionResetError("the client went away")

        def _stream(self, body: dict[str, Any], words: list[str]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream; charset=utf-8")
            self.send_header("transfer-encoding", "chunked")
            packed = zlib.compressobj(wbits=31) if "zip" in words else None
            if packed is not None:
                self.send_header("content-encoding", "gzip")
            self.end_headers()
            for event in _events(body, words):
                if event is None:
                    self.close_connection = True
                    return
                if "slow" in words:
                    time.sleep(SLOW)
                text = b"data: " + event + b"\n\n"
                fake.answers.append(text)
                if packed is not None:
                    text = packed.compress(text) + packed.flush(zlib.Z_SYNC_FLUSH)
                self._chunk(text)
            if packed is not None:
                self._chunk(packed.flush())
            self._chunk(b"")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def _json(self, status: int, content: object, *, zipped: bool = False) -> None:
            body = content.encode() if isinstance(content, str) else _dump(content)
            fake.answers.append(body)
            self.send_response(status)
            if zipped:
                body = gzip.compress(body)
                self.send_header("content-encoding", "gzip")
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                fake.aborted.set()

    return Handler


def read_tensors(path: str = "", shared: str = "", digest: str = "") -> dict[str, str]:
    """Return the digest of each tensor in a folder, or in a learner's memory, of bytes."""
    if shared:
        message = json.loads(shared)
        place = message["memory"]
        file = Path(f"/proc/{place['process']}/fd/{place['descriptor']}")
        data = file.read_bytes()
        places = {
            each["name"]: (each["start"], each["start"] + math.prod(each["shape"]))
            for each in message["tensors"]
        }
    else:
        data = (Path(path) / "model.safetensors").read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        offsets = {name: tensor["data_offsets"] for name, tensor in header.items()}
        places = {name: (start + a, start + b) for name, (a, b) in offsets.items()}
    return {name: hashlib.sha256(data[a:b]).hexdigest() for name, (a, b) in places.items()}


def _is_chat(body: dict[str, Any]) -> bool:
    return "messages" in body


def _words(body: dict[str, Any]) -> list[str]:
    prompt = body["messages"][-1]["content"] if _is_chat(body) else body["prompt"]
    return str(prompt).split()


def _head(body: dict[str, Any], chunk: str = "") -> dict[str, Any]:
    head, kind = ("chatcmpl", "chat.completion") if _is_chat(body) else ("cmpl", "text_completion")
    kind += chunk if _is_chat(body) else ""
    number = len(body.get("messages", "1"))
    return {"id": f"{head}-{number}", "object": kind, "created": 1, "model": body["model"]}


def _tokens(words: list[str]) -> list[int]:
    return [int(word[1:]) for word in words if word[:1] in ("w", "h") and word[1:].isdigit()]


def _logprobs(tokens: list[int], body: dict[str, Any]) -> dict[str, Any] | None:
    if not _is_chat(body):
        texts = [f"w{each}" for each in tokens]
        logprobs = {"tokens": texts, "token_logprobs": [logprob(each) for each in tokens]}
        return None if body.get("logprobs") is None else logprobs
    if not body.get("logprobs"):
        return None
    return {"content": [{"token": f"w{each}", "logprob": logprob(each)} for each in tokens]}


FIRST_ID = int(os.environ.get("FAKE_VLLM_FIRST_ID", "1000"))
"""The first token id of a prompt."""
RELOAD = float(os.environ.get("FAKE_VLLM_RELOAD", "0"))
"""Seconds that new weights take; with any, each beginning is printed."""
DIES = Path(os.environ["FAKE_VLLM_DIES"]) if "FAKE_VLLM_DIES" in os.environ else None
"""A file with the method of its workers at whose next call it dies; it removes the file."""


def _prompt_ids(body: dict[str, Any], words: list[str]) -> dict[str, Any]:
    wanted = body.get("return_token_ids")
    if wanted and "prompt_ids" in body:
        return {"prompt_token_ids": body["prompt_ids"]}
    return {"prompt_token_ids": [FIRST_ID + i for i, _ in enumerate(words)] if wanted else None}


def _choice(index: int, words: list[str], body: dict[str, Any]) -> dict[str, Any]:
    words = _vary(index, words)
    tokens = _tokens(words)
    content = " ".join(word for word in words if word[:1] == "w" and word[1:].isdigit())
    message: dict[str, Any] = {
        "message": {"role": "assistant", "content": content, "refusal": None}
    }
    if "think" in words:
        message["message"]["reasoning"] = REASONING
    if "call" in words:
        message["message"]["tool_calls"] = CALLS
    return {
        "index": index,
        **(message if _is_chat(body) else {"text": content}),
        "logprobs": _logprobs(tokens, body),
        "finish_reason": _finish_reason(words),
        "stop_reason": "matched" if "matched" in words else None,
        **({} if _is_chat(body) else _prompt_ids(body, words)),
        "token_ids": tokens if body.get("return_token_ids") else None,
    }


def _vary(index: int, words: list[str]) -> list[str]:
    """Return the words of a choice, whose index is added to each token if the request varies."""
    added = index if "vary" in words else 0
    return [f"{word[0]}{_tokens([word])[0] + added}" if _tokens([word]) else word for word in words]


def _finish_reason(words: list[str]) -> str:
    return "length" if "cut" in words else "tool_calls" if "call" in words else "stop"


def _call_deltas() -> Iterator[dict[str, Any]]:
    for index, call in enumerate(CALLS):
        name, arguments = call["function"].values()
        yield {**call, "index": index, "function": {"name": name, "arguments": arguments[:5]}}
        yield {"index": index, "function": {"arguments": arguments[5:]}}


def _events(body: dict[str, Any], words: list[str]) -> Iterator[bytes | None]:
    head, chat = _head(body, ".chunk"), _is_chat(body)
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    if chat:
        yield _dump({**head, "choices": [{**first, "logprobs": None}], **_prompt_ids(body, words)})
    if "think" in words:
        for text in (REASONING[:4], REASONING[4:]):
            yield _dump({**head, "choices": [{**first, "delta": {"reasoning": text}}]})
    spoken = [word for word in words if _tokens([word])]
    count = body.get("n") or 1
    varied = [
        _vary(index, ["vary", *spoken] if "vary" in words else spoken) for index in range(count)
    ]
    places = ((place, index) for place in range(len(spoken)) for index in range(count))
    for place, index in places:
        word = varied[index][place - len(spoken)]
        last, (token,) = place == len(spoken) - 1, _tokens([word])
        if "vanish" in words and last:
            yield None
        held = chat and word[0] == "h"
        if held and not last and not (body.get("return_token_ids") or body.get("logprobs")):
            continue
        prompt = {} if chat else _prompt_ids(body if place == 0 else {}, words)
        choice = {
            "index": index,
            **({"delta": {} if held else {"content": f" {word}"}} if chat else {"text": word}),
            "logprobs": _logprobs([token], body),
            "finish_reason": _finish_reason(words) if last and "call" not in words else None,
            **prompt,
            "token_ids": [token] if body.get("return_token_ids") else None,
        }
        yield _dump({**head, "choices": [choice]})
    for delta in _call_deltas() if "call" in words else ():
        yield _dump({**head, "choices": [{**first, "delta": {"tool_calls": [delta]}}]})
    if "call" in words or (chat and not spoken):
        last_choice = {**first, "delta": {}, "finish_reason": _finish_reason(words)}
        yield _dump({**head, "choices": [last_choice]})
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": len(words), "completion_tokens": len(_tokens(words))}
        yield _dump({**head, "choices": [], "usage": usage})
    yield b"[DONE]"


def _dump(content: object) -> bytes:
    """Return JSON as vLLM writes it."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


if __name__ == "__main__":
    print(*sys.argv[1:], flush=True)
    place = sys.argv[-1] if "--uds" not in sys.argv else sys.argv[sys.argv.index("--uds") + 1]
    with FakeVllm(int(place) if place.isdecimal() else Path(place)):
        signal.pause()
