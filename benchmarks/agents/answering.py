"""A model server and OTLP sink that answers at once; it prints its port."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MESSAGE = {"role": "assistant", "content": "It is sunny."}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "fake",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    """One packet per answer: a second one would wait for the client's acknowledgement."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        traces = self.path == "/v1/traces"
        answer = b"" if traces else json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf" if traces else "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
