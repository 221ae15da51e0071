"""A policy server that answers at once, as vLLM 0.32 does; it prints its port.

Each response has 1,024 token ids of the prompt and 128 sampled tokens with log-probabilities; a
stream has one chunk for each sampled token, two milliseconds after the last one, or as many seconds
as the first argument says. For the user `burst` all chunks come at once; for `paced` a complete
response takes as long as a stream.
"""

import asyncio
import json
import sys
from typing import Any

PROMPT, SAMPLED = 1024, 128
PACE = float(sys.argv[1]) if len(sys.argv) > 1 else 0.002
"""Seconds between two chunks."""
HEAD = {"id": "chatcmpl-1", "created": 1_790_000_000, "model": "policy"}
PATHS = {
    "/v1/models": {"object": "list", "data": [{"id": "policy", "max_model_len": 4096}]},
    "/weight_info": {"weight_version": "default"},
}
"""Content of the responses to GET; all others have none."""


def _token(number: int) -> dict[str, Any]:
    text = f" w{number}"
    logprob = -1.5078125 - number / 7
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}


def _complete() -> bytes:
    tokens = [_token(number) for number in range(SAMPLED)]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(each["token"] for each in tokens)},
        "logprobs": {"content": tokens},
        "finish_reason": "length",
        "token_ids": [1000 + number for number in range(SAMPLED)],
    }
    usage = {"prompt_tokens": PROMPT, "completion_tokens": SAMPLED}
    usage["total_tokens"] = PROMPT + SAMPLED
    ids = {"prompt_token_ids": list(range(PROMPT))}
    return _encode(
        {**HEAD, "object": "chat.completion", "choices": [choice], "usage": usage, **ids}
    )


def _stream() -> list[bytes]:
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    events = [_chunk(first, prompt_token_ids=list(range(PROMPT)))]
    for number in range(SAMPLED):
        token, last = _token(number), number == SAMPLED - 1
        choice = {
            "index": 0,
            "delta": {"content": token["token"]},
            "logprobs": {"content": [token]},
            "finish_reason": "length" if last else None,
            "token_ids": [1000 + number],
        }
        events.append(_chunk(choice))
    data = [b"data: %s\n\n" % event for event in (*events, b"[DONE]")]
    chunks = [b"%x\r\n%s\r\n" % (len(each), each) for each in data]
    return [*chunks[:-1], chunks[-1] + b"0\r\n\r\n"]


def _chunk(choice: dict[str, Any], **fields: Any) -> bytes:
    return _encode({**HEAD, "object": "chat.completion.chunk", "choices": [choice], **fields})


def _encode(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _respond(body: bytes, headers: bytes = b"") -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s"
        % (len(body), headers, body)
    )


COMPLETE = _respond(_complete())
STREAM = [
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    *_stream(),
]
OTHERS = {path.encode(): _respond(_encode(content)) for path, content in PATHS.items()}
EMPTY = _respond(b'{"success":true}')


class Server(asyncio.Protocol):
    """One connection; the next request comes after the response to the last one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._received = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = bytes(self._received[:end]).lower()
        _, found, length = head.partition(b"content-length:")
        size = int(length.split(b"\r\n", 1)[0]) if found else 0
        if len(self._received) < end + size:
            return
        body = bytes(self._received[end : end + size])
        self._received.clear()
        path = head.split(b" ", 2)[1]
        if path.endswith(b"/completions"):
            request = json.loads(body)
            if request.get("user") == "burst":
                self._transport.write(b"".join(STREAM))
            elif request.get("stream"):
                self._send_paced(0)
            elif request.get("user") == "paced":
                loop = asyncio.get_running_loop()
                loop.call_later(PACE * SAMPLED, self._transport.write, COMPLETE)
            else:
                self._transport.write(COMPLETE)
        else:
            self._transport.write(OTHERS.get(path, EMPTY))

    def _send_paced(self, number: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(STREAM[number])
        if number + 1 < len(STREAM):
            asyncio.get_running_loop().call_later(PACE, self._send_paced, number + 1)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
