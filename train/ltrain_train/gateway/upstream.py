"""The policy server as the gateway reaches it: one pool of connections, and the admin routes.

Agents never reach an admin route: a path of theirs is never passed on, only a chat body is.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.tokens.events import EventSplitter

CONNECT = 10.0
"""Seconds for a connection on the same machine, while it loads a model on every core."""
HEALTH = 5.0
"""Seconds in which a server that is well says so."""
RELOAD = 300.0
"""Seconds for reading weights from disk into the server."""
KEPT = 4.0
"""Seconds that an idle connection is kept: vLLM closes its end after 5, and a request on a closed
connection looks like a server that failed."""


class UpstreamFailed(LtrainError, ConnectionError):
    """The policy server is away, or refuses what it must do."""


class UpstreamAway(UpstreamFailed):
    """The policy server does not answer, or died in the middle: it may come back."""


class Upstream:
    """One policy server, by its base URL or its unix socket, and the model name it serves under."""

    def __init__(self, address: str | Path, model: str) -> None:
        self.address = str(address).rstrip("/")
        """As a sentence names it."""
        self.model = model
        self.url, connector = _reached(address)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        self._chat = f"{self.url}/v1/chat/completions"

    async def close(self) -> None:
        await self._session.close()

    def chat(self, body: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Post a chat completion; leaving the context before its end aborts the generation."""
        headers = {"content-type": "application/json"}
        return self._session.post(self._chat, data=body, headers=headers)

    async def healthy(self) -> bool:
        """Return whether the server says that its engine is alive."""
        timeout = aiohttp.ClientTimeout(total=HEALTH)
        try:
            async with self._session.get(f"{self.url}/health", timeout=timeout) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def models(self) -> list[str]:
        """Return the names that the server serves under."""
        listed = await self._json("GET", "/v1/models")
        return [model["id"] for model in listed["data"]]

    async def loaded(self) -> str:
        """Return the label of the weights in the server; vLLM's own is `default`."""
        return str((await self._json("GET", "/weight_info"))["weight_version"])

    async def load(self, weights: Path, label: str) -> None:
        """Replace the weights of a server without calls, and forget what it had cached.

        Raises:
            UpstreamFailed: when the server refuses; its weights are then unknown.
        """
        await self._json("POST", "/pause?mode=wait")
        try:
            reload = {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}}
            await self._json("POST", "/collective_rpc", reload)
            await self._reset_prefix_cache()
            await self.label(label)
        finally:
            await self._json("POST", "/resume")

    async def label(self, label: str) -> None:
        """Set what `loaded` returns until the server ends."""
        await self._json("POST", "/update_weight_version", {"new_version": label})

    async def _reset_prefix_cache(self) -> None:
        """Stale keys and values would be read by the new weights, so a refusal is an error."""
        for _ in range(50):
            if (await self._json("POST", "/reset_prefix_cache")).get("success"):
                return
            await asyncio.sleep(0.1)
        raise UpstreamFailed(f"{self.address} does not reset its prefix cache: it still computes.")

    async def _json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=RELOAD, sock_connect=CONNECT)
        try:
            url = self.url + path
            async with self._session.request(method, url, json=body, timeout=timeout) as answer:
                text = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise UpstreamAway(f"No policy server answers at {self.address}: {why}.") from error
        if answer.status != 200:
            raise UpstreamFailed(_refusal(self.address, method, path, answer.status, text))
        said: dict[str, Any] = orjson.loads(text) if text else {}
        return said


def _reached(address: str | Path) -> tuple[str, aiohttp.BaseConnector]:
    """Return the base URL of requests to `address`, and what makes connections to it."""
    if isinstance(address, Path):
        return "http://vllm", aiohttp.UnixConnector(str(address), limit=0, keepalive_timeout=KEPT)
    return address.rstrip("/"), aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT)


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield what each server-sent event carries."""
    cut = EventSplitter()
    async for piece in response.content.iter_any():
        for event in cut.feed(piece):
            if event.data:  # a comment keeps the connection alive
                yield event.data


def _refusal(address: str, method: str, path: str, status: int, text: bytes) -> str:
    said = text[:500].decode(errors="replace")
    if status == 404:
        return (
            f"The policy server at {address} has no {method} {path}: start vLLM with "
            "VLLM_SERVER_DEV_MODE=1, or let `ltrain serve` start it."
        )
    return f"The policy server at {address} refused {method} {path} with status {status}: {said}"
