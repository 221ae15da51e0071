"""A proxy that records requests and responses byte for byte."""

import http.client
import json
import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class RecordedCall:
    path: str
    request: bytes
    answer: bytes


class UnixConnection(http.client.HTTPConnection):
    """A connection to a server on a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("vllm", timeout=300)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Recorder:
    """Listens on a free port and forwards to the server on the unix socket `upstream`."""

    def __init__(self, upstream: Path) -> None:
        self.recorded_calls: list[RecordedCall] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, upstream))
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def read_response(answer: bytes) -> list[tuple[Any, list[int], list[float]]]:
    """Return the prompt ids, token ids and log-probabilities of each choice in vLLM's response."""
    if not answer.startswith(b"data:"):
        chunks = [json.loads(answer)]
    else:
        events = [line[6:] for line in answer.decode().split("\n\n") if line]
        chunks = [json.loads(event) for event in events if event != "[DONE]"]
    # a chat reports the prompt's ids in the response, a completion in its choices
    parts = [*chunks, *(choice for chunk in chunks for choice in chunk["choices"])]
    prompt = next(part["prompt_token_ids"] for part in parts if part.get("prompt_token_ids"))
    choices: dict[int, tuple[Any, list[int], list[float]]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        _, ids, logprobs = choices.setdefault(choice["index"], (prompt, [], []))
        ids += choice.get("token_ids") or []
        reported = choice["logprobs"] or {}
        content = reported.get("content") or []
        logprobs += reported.get("token_logprobs") or [token["logprob"] for token in content]
    return [choices[index] for index in sorted(choices)]


def _handler(recorder: Recorder, upstream: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            self._pass()

        def do_POST(self) -> None:
            self._pass()

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            connection = UnixConnection(upstream)
            try:
                headers = {"content-type": "application/json"}
                connection.request(self.command, self.path, body, headers)
                self._answer(body, connection.getresponse())
            finally:
                connection.close()

        def _answer(self, request: bytes, response: http.client.HTTPResponse) -> None:
            self.send_response(response.status)
            self.send_header("content-type", response.headers["content-type"])
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            body = b""
            while piece := response.read1(65536):
                body += piece
                self._chunk(piece)
            recorder.recorded_calls.append(RecordedCall(self.path, request, body))
            self._chunk(b"")

        def _chunk(self, piece: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()

    return Handler
