"""Clients of a model server: `clients.py URL KEY CLIENTS CALLS complete|stream|burst`.

Each sends its next request when it has the last response. Prints as JSON the seconds of each call,
the seconds until the first token of each stream, and the seconds of all calls together.
"""

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

PROMPT = "lorem ipsum dolor " * 280
"""About 1,024 tokens."""


class Client:
    """Calls the server on one connection, with as little work of its own as possible."""

    def __init__(self, url: str, key: str, kind: str) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._stream = parts.hostname, parts.port, kind != "complete"
        message = {"role": "user", "content": PROMPT}
        fields = {"model": "policy", "messages": [message], "max_tokens": 128}
        body = json.dumps({**fields, "stream": self._stream, "user": kind}).encode()
        self._request = (
            f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        self.seconds: list[float] = []
        self.first_token: list[float] = []

    async def run(self, calls: int) -> None:
        """Make the calls one after the other."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        for _ in range(calls):
            began = time.perf_counter()
            writer.write(self._request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"http/1.1 200"):
                raise SystemExit(f"{head!r} {await reader.read(500)!r}")
            if self._stream:
                await self._read_stream(reader, began)
            else:
                length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
                await reader.readexactly(length)
            self.seconds.append(time.perf_counter() - began)
        writer.close()

    async def _read_stream(self, reader: asyncio.StreamReader, began: float) -> None:
        events = 0
        while size := int(await reader.readline(), 16):
            data = await reader.readexactly(size + 2)
            events += data.count(b"data: ")
            if events >= 2 and len(self.first_token) == len(self.seconds):
                self.first_token.append(time.perf_counter() - began)
        await reader.readline()


async def main() -> None:
    url, key, clients, calls, kind = sys.argv[1:]
    each = [Client(url, key, kind) for _ in range(int(clients))]
    began = time.perf_counter()
    await asyncio.gather(*(client.run(int(calls)) for client in each))
    total = time.perf_counter() - began
    seconds = [one for client in each for one in client.seconds]
    first = [one for client in each for one in client.first_token]
    print(json.dumps({"total": total, "seconds": seconds, "first_token": first}))


if __name__ == "__main__":
    asyncio.run(main())
