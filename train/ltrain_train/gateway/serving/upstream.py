"""The gateway's HTTP client of the policy server: completions and admin routes.

Agents cannot reach an admin route: the gateway forwards the body of a call, never a path. Behind a
router there are several replicas: it answers calls, and each replica gets every admin request.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import aiohttp
import orjson
from tenacity import AsyncRetrying, RetryError, retry_if_not_result, stop_after_attempt, wait_fixed

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.tokens import EventSplitter, Operation

PATHS: dict[Operation, str] = {
    "chat": "/v1/chat/completions",
    "text_completion": "/v1/completions",
}
"""The routes of the model, here and at the policy server."""

LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ALREADY_LOADED = b"has already been loaded"
"""The error of vLLM for an adapter whose name it has."""
CONNECT_TIMEOUT = 10.0
"""Seconds to connect on the same machine, which may be loading a model on every core."""
HEALTH_TIMEOUT = 5.0
"""Seconds in which a healthy server answers its health route."""
RELOAD_TIMEOUT = 300.0
"""Seconds to read weights from disk into the server."""
MAX_ANSWER_BYTES = 128 << 20
"""Maximum bytes of a server's answer; 128,000 tokens with log-probabilities take 20 MiB."""
MIN_WRITTEN_BYTES = 1 << 20
"""Bytes of a request that is not written at once, so that other calls go on meanwhile."""
MAX_EVENT_BYTES = 16 << 20
"""Maximum bytes of an event in a stream; the token ids of a prompt are in one event."""
MAX_ERROR_BYTES = 1 << 20
"""Bytes of a server's error that are read."""
PLAIN = {"accept-encoding": "identity"}
"""Header of all requests: a compressed answer could fill the memory."""
JSON = {**PLAIN, "content-type": "application/json"}
"""Headers of requests with a body."""
KEEPALIVE = 4.0
"""Seconds until an idle connection is closed: vLLM closes its end after 5, and a request on a
closed connection looks like a server failure."""


class UpstreamFailed(LtrainError, ConnectionError):
    """The policy server does not answer, or refuses a request."""


class UpstreamFull(UpstreamFailed):
    """The policy server has no place for a further adapter."""


class UpstreamAway(UpstreamFailed):
    """The policy server does not answer or died during a request; it may be started again."""


class Upstream:
    """One policy server, reached by its base URL or unix socket, and its served model name."""

    def __init__(
        self,
        address: str | Path,
        model: str,
        *,
        key: str | None = None,
        health_path: str = "/health",
        replicas: Sequence[str] = (),
        stages: bool = False,
        shares: bool = False,
    ) -> None:
        """Describe a server.

        Args:
            address: its base URL or unix socket, or the base URL of a router.
            model: its served model name.
            key: its key.
            health_path: route that answers 200 while it is healthy.
            replicas: base URLs of the servers behind the router; none: `address` is the server.
            stages: whether it loads new weights beside its own (`in_vllm/staged_weights.py`).
            shares: whether it loads those in a learner's memory (`in_vllm/shared_tensors.py`).
        """
        self.address = str(address).rstrip("/").removesuffix("/v1")
        """The address as errors show it."""
        self.model = model
        self.max_model_len: int | None = None
        """Maximum tokens of prompt and response together, as the server last told `models`."""
        self.waiting = ""
        """Why calls wait at a healthy server, as it last reported; '' if they do not."""
        self.was_healthy = True
        """The last result of `is_healthy`; a host's is six seconds old at most."""
        self.url, connector = _open_connector(address)
        self._health_path = health_path
        self.stages, self.shares = stages, shares
        self.has_replicas = bool(replicas)
        """Whether several servers answer, so that each call's version must be checked."""
        self._servers = [url.rstrip("/").removesuffix("/v1") for url in replicas] or [self.url]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"authorization": f"Bearer {key}"} if key else None,
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    def post(
        self, operation: Operation, body: bytes, headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Post a call; leaving the context before its end aborts the generation."""
        url = f"{self.url}{PATHS[operation]}"
        sent = {**JSON, **(headers or {})}
        return self._session.post(url, data=request_data(body), headers=sent, allow_redirects=False)

    async def is_healthy(self) -> bool:
        """Return whether the server reports a healthy engine."""
        urls = {self.url, *self._servers}
        self.was_healthy = all(await asyncio.gather(*(self._is_healthy(url) for url in urls)))
        return self.was_healthy

    async def _is_healthy(self, url: str) -> bool:
        timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT)
        try:
            async with self._session.get(
                url + self._health_path, headers=PLAIN, timeout=timeout, allow_redirects=False
            ) as response:
                self.waiting = await _read_waiting(response)
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def models(self) -> list[str]:
        """Return the names of the server's models, and store the served one's `max_model_len`."""
        content = await self._request(self.url, "GET", "/v1/models")
        try:
            limits = {str(model["id"]): model.get("max_model_len") for model in content["data"]}
        except (AttributeError, KeyError, TypeError) as error:
            text = orjson.dumps(content)
            raise self._unreadable(self.url, "GET", "/v1/models", text) from error
        self.max_model_len = limits.get(self.model, self.max_model_len)
        return list(limits)

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter, while calls run; calls that name it as their model are its own.

        Raises:
            UpstreamFull: when the server has no place for it.
        """
        body = {"lora_name": name, "lora_path": str(folder)}
        for url in self._servers:
            status, text = await self._send(url, "POST", LOAD_ADAPTER, body)
            if ALREADY_LOADED in text:  # by an earlier gateway, perhaps from another folder
                await self.unload_adapter(name)
                status, text = await self._send(url, "POST", LOAD_ADAPTER, body)
            if status != HTTPStatus.OK:
                is_full = status == HTTPStatus.INSUFFICIENT_STORAGE
                fault = UpstreamFull if is_full else UpstreamFailed
                raise fault(_refusal(self._name(url), "POST", LOAD_ADAPTER, status, text))

    async def unload_adapter(self, name: str) -> None:
        """Remove an adapter that no call uses; the server may lack it."""
        for url in self._servers:
            status, text = await self._send(url, "POST", UNLOAD_ADAPTER, {"lora_name": name})
            if status not in (200, 404):
                sentence = _refusal(self._name(url), "POST", UNLOAD_ADAPTER, status, text)
                raise UpstreamFailed(sentence)

    async def loaded_label(self) -> str:
        """Return the label of the weights in the server; vLLM's initial label is `default`.

        Of replicas with different weights all labels are returned.
        """
        answers = await self._request_all("GET", "/weight_info")
        labels = {str(answer.get("weight_version", "unknown")) for answer in answers}
        return " and ".join(sorted(labels))

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Pause a server without calls in flight for the block, which replaces its weights."""
        await self._request_all("POST", "/pause?mode=wait")
        try:
            yield
        finally:
            await self._request_all("POST", "/resume")

    async def reset_prefix_caches(self) -> None:
        """Reset the prefix cache of each replica."""
        await asyncio.gather(*map(self._reset_prefix_cache, self._servers))

    async def call_workers(self, method: str, **arguments: str) -> Any:
        """Call a method of vLLM's workers, and return the result of the first one."""
        call = {"method": method, "kwargs": arguments}
        first, *_ = await self._request_all("POST", "/collective_rpc", call)
        return (first.get("results") or [None])[0]

    async def sleep(self) -> None:
        """Move the weights of a server without calls into the host's memory, and free its cache."""
        await self._request_all("POST", "/sleep?level=1")

    async def wake_up(self, part: Literal["weights", "kv_cache"]) -> None:
        """Take the memory of the GPU again for a part of a server; it may have it already."""
        await self._request_all("POST", f"/wake_up?tags={part}")

    async def set_label(self, label: str) -> None:
        """Label the weights in the server; `loaded_label` returns the label."""
        await self._request_all("POST", "/update_weight_version", {"new_version": label})

    async def _reset_prefix_cache(self, url: str) -> None:
        """Reset the prefix cache, since its keys and values belong to the old weights."""
        retrying = AsyncRetrying(
            retry=retry_if_not_result(lambda answer: answer.get("success")),
            wait=wait_fixed(0.1),
            stop=stop_after_attempt(50),
        )
        try:
            await retrying(self._request, url, "POST", "/reset_prefix_cache")
        except RetryError as error:
            raise UpstreamFailed(
                f"The policy server at {self._name(url)} did not reset its prefix cache within "
                "5 s, because requests are still running. Publish again."
            ) from error

    async def complete_chat(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Return the status and the body of the response to a chat completion."""
        return await self._send(self.url, "POST", PATHS["chat"], body)

    async def complete_text(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Return the status and the body of the response to a completion."""
        return await self._send(self.url, "POST", PATHS["text_completion"], body)

    async def render(self, operation: Operation, body: dict[str, Any]) -> tuple[int, bytes]:
        """Return the status and the body of the response with the sampling of a request."""
        return await self._send(self._servers[0], "POST", f"{PATHS[operation]}/render", body)

    async def version(self) -> str:
        """Return the version of vLLM; empty if the server does not report one."""
        status, text = await self._send(self._servers[0], "GET", "/version", None)
        with suppress(orjson.JSONDecodeError, AttributeError):
            return str(orjson.loads(text).get("version", "")) if status == 200 else ""
        return ""

    async def structured_outputs(self) -> dict[str, Any] | None:
        """Return vLLM's settings of structured output; None if the server does not report them."""
        path = "/server_info?config_format=json"
        _, text = await self._send(self._servers[0], "GET", path, None)
        with suppress(orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            return dict(orjson.loads(text)["vllm_config"]["structured_outputs_config"])
        return None

    async def tokenize(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Return the status and the body of the response to a prompt that is to be tokenised."""
        return await self._send(self._servers[0], "POST", "/tokenize", body)

    async def _request_all(
        self, method: str, path: str, body: object = None
    ) -> list[dict[str, Any]]:
        """Send an admin request to each replica, and return the answers."""
        requests = (self._request(url, method, path, body) for url in self._servers)
        return await asyncio.gather(*requests)

    async def _request(
        self, url: str, method: str, path: str, body: object = None
    ) -> dict[str, Any]:
        status, text = await self._send(url, method, path, body)
        if status != 200:
            raise UpstreamFailed(_refusal(self._name(url), method, path, status, text))
        try:
            content = orjson.loads(text) if text else {}
        except orjson.JSONDecodeError as error:
            raise self._unreadable(url, method, path, text) from error
        if not isinstance(content, dict):
            raise self._unreadable(url, method, path, text)
        return content

    async def _send(self, url: str, method: str, path: str, body: object) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=RELOAD_TIMEOUT, sock_connect=CONNECT_TIMEOUT)
        data, headers = (None, PLAIN) if body is None else (request_data(orjson.dumps(body)), JSON)
        try:
            async with self._session.request(
                method,
                url + path,
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                return response.status, await read_answer(response)
        except ValueError as error:
            raise UpstreamFailed(
                f"The policy server at {self._name(url)} cannot be read: {error}."
            ) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise UpstreamAway(
                f"No policy server answers at {self._name(url)}: {reason}."
            ) from error

    def _name(self, url: str) -> str:
        """Return the address of a server as errors show it."""
        return self.address if url == self.url else url

    def _unreadable(self, url: str, method: str, path: str, text: bytes) -> UpstreamFailed:
        beginning = " ".join(text[:80].decode(errors="replace").split())
        return UpstreamFailed(
            f"The server at {self._name(url)} does not answer {method} {path} as vLLM does: "
            f"'{beginning}'. Check that a policy server has this address."
        )


def _open_connector(address: str | Path) -> tuple[str, aiohttp.BaseConnector]:
    """Return the base URL of requests to `address`, and its connector."""
    if isinstance(address, Path):
        return "http://vllm", aiohttp.UnixConnector(
            str(address), limit=0, keepalive_timeout=KEEPALIVE
        )
    return address.rstrip("/").removesuffix("/v1"), aiohttp.TCPConnector(
        limit=0, keepalive_timeout=KEEPALIVE
    )


def request_data(body: bytes) -> bytes | BytesIO:
    """Return the body of a request for aiohttp, which writes a file piece by piece."""
    return body if len(body) < MIN_WRITTEN_BYTES else BytesIO(body)


async def read_answer(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an answer.

    Raises:
        ValueError: when it is too long, or compressed although no request allows that.
    """
    _require_plain(response)
    if (response.content_length or MAX_ANSWER_BYTES + 1) <= MAX_ANSWER_BYTES:
        return await response.read()
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
    return bytes(body)


async def _read_waiting(response: aiohttp.ClientResponse) -> str:
    """Return why calls wait; vLLM's answer is empty."""
    with suppress(ValueError, AttributeError):
        return str(orjson.loads(await read_answer(response)).get("waiting", ""))
    return ""


async def read_error(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an error, or its beginning."""
    _require_plain(response)
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk[: MAX_ERROR_BYTES - len(body)]
        if len(body) == MAX_ERROR_BYTES:
            response.close()
            break
    return bytes(body)


def _require_plain(response: aiohttp.ClientResponse) -> None:
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise ValueError(f"the answer has the encoding '{encoding[:40]}', which was not requested")


async def read_events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event."""
    _require_plain(response)
    parser = EventSplitter()
    async for chunk in response.content.iter_any():
        if len(parser.remainder) + len(chunk) > MAX_EVENT_BYTES:
            raise ValueError(f"an event has more than {MAX_EVENT_BYTES >> 20} MiB")
        for event in parser.feed(chunk):
            if event.data:  # a comment only keeps the connection alive
                yield event.data


def _refusal(address: str, method: str, path: str, status: int, text: bytes) -> str:
    detail = text[:500].decode(errors="replace")
    if status == 404:
        return (
            f"The policy server at {address} has no {method} {path}: start vLLM with "
            "VLLM_SERVER_DEV_MODE=1 (for adapters also VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and "
            "--enable-lora), or let `ltrain serve` start it."
        )
    return f"The policy server at {address} refused {method} {path} with status {status}: {detail}"
