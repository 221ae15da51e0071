"""The models of a Tinker server: one sampling client for the base, and one for each adapter.

* A new adapter is one request to the server; it is sampled once before calls may name it.
* A sampling session that the server has lost is opened again, once for each call.
* At a server of SkyRL an adapter is loaded from its checkpoint, in a training run of the gateway's
  own.
* While the server refuses calls for a quota, or is away, the calls wait; `waiting` says why.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.files import write_file
from ltrain_train.errors import BadModel
from ltrain_train.gateway.errors import Refused
from ltrain_train.overlays import OLD_SDK, SKYRL_SDK, TINKER
from ltrain_train.policy import read_tinker_weights

SERVICE = "https://tinker.thinkingmachines.dev/services/tinker-prod"
"""The service of Thinking Machines, the SDK's own default."""
PROBE_TIMEOUT = 30.0
"""Seconds until a server must answer at the start; the SDK itself would try for five minutes."""
LOG_PAUSE = 60.0
"""Seconds between two lines of the log on the same wait."""
RECENT = 40.0
"""Seconds for which a refused request counts as a wait: the SDK sends it again after 30 at most."""
VERSIONS = f"SkyRL 0.4.0 takes tinker=={SKYRL_SDK}, skyrl-tx 0.3.0 takes tinker=={OLD_SDK}"
RELEASE_TIMEOUT = 5.0
"""Seconds in which the server releases the places of training runs at the end."""
LOST = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
UNLOADED = re.compile(r"Model \S+ not loaded")
"""The error of a server of SkyRL that does not have the training run of an adapter any more."""
FULL = "Maximum number of LoRA adapters"
"""The error of a server of SkyRL whose places are all taken."""


class NoTinkerServer(LtrainError, ConnectionError):
    """The Tinker server does not answer, or not as this version of the SDK expects."""


class OwnRuns:
    """The training runs of a gateway at a server of SkyRL, one for each adapter that it samples.

    SkyRL samples an adapter in the place of the training run that saved the adapter: only while
    that run is loaded, and with the saved weights in place of the current ones. So an adapter is
    loaded from its checkpoint into a run that nobody trains. A file names these runs: the next
    gateway releases those of a killed one, since a server has few places for adapters.
    """

    def __init__(self, sdk: Any, service: Any, file: Path | None) -> None:
        """Request the release of the runs that the file names; None: there is no file."""
        self._sdk, self._service, self._file = sdk, service, file
        self._runs: dict[str, str] = {}
        self._releases: list[Any] = []
        """The requests to release runs that have not ended."""
        for run in _read(file):
            self._request_release(run)

    def load(self, path: str, state: str) -> Any:
        """Load an adapter from a checkpoint, and return its sampling client."""
        self.release(path)
        run = self._service.create_training_client_from_state(state)
        self._runs[path] = str(run.model_id)
        self._write()
        return run.save_weights_and_get_sampling_client()

    def release(self, path: str) -> None:
        """Request the release of the run of an adapter, if there is one."""
        if path in self._runs:
            self._request_release(self._runs.pop(path))
            self._write()

    def wait(self) -> None:
        """Wait until the server has taken the requests to release runs."""
        for future in self._releases:
            with suppress(self._sdk.TinkerError, ValueError, TimeoutError):
                future.result(RELEASE_TIMEOUT)

    def close(self) -> None:
        """Release all runs."""
        for path in list(self._runs):
            self.release(path)
        self.wait()

    def _request_release(self, run: str) -> None:
        request = self._sdk.types.UnloadModelRequest(model_id=run)

        async def unload() -> None:
            with self._service.holder.aclient(_pool_type()) as client:
                await client.models.unload(request=request)

        self._releases = [each for each in self._releases if not each.future().done()]
        self._releases.append(self._service.holder.run_coroutine_threadsafe(unload()))

    def _write(self) -> None:
        if self._file is not None:
            write_file(self._file, json.dumps(list(self._runs.values())))


class TinkerModels:
    """The models by the names under which calls request them."""

    def __init__(
        self,
        base_url: str | None,
        base_model: str,
        log: Callable[[str], None],
        runs: Path | None = None,
    ) -> None:
        """Connect to the server.

        Args:
            runs: the file that names the training runs of the gateway; None: there is none.

        Raises:
            NoTinkerServer: when it does not answer, or refuses the key or the SDK.
        """
        TINKER.add()
        import tinker

        self.base_url, self.base_model, self._log = base_url or SERVICE, base_model, log
        self.adapters: dict[str, str] = {}
        """The `tinker://` path of each loaded adapter, by name."""
        self._clients: dict[str | None, Any] = {}
        """The sampling clients by path; that of the base has None."""
        self._states: dict[str, str] = {}
        """The path of the checkpoint of each adapter, by its own path, at a server of SkyRL."""
        self._opening = asyncio.Lock()
        self._waits: tuple[float, str] = (0.0, "")
        """When a request was last refused or lost, and why."""
        self._logged = 0.0
        self._sdk = tinker
        self._probe_url()
        self._is_skyrl = base_url is not None and self._describes_itself()
        self._service = tinker.ServiceClient(base_url=self.base_url)
        self._runs = OwnRuns(tinker, self._service, runs)

    @property
    def waiting(self) -> str:
        """Why calls wait; '' if they do not."""
        at, reason = self._waits
        return reason if time.monotonic() - at < RECENT else ""

    async def start(self) -> int | None:
        """Sample the base once, and return the most tokens that the server serves of it.

        Raises:
            NoTinkerServer: when the server cannot sample it.
        """
        try:
            found = await asyncio.to_thread(self._service.get_server_capabilities)
            models = {model.model_name: model for model in found.supported_models}
            self._require_served(list(models))
            await self._try(None)
        except Refused as refused:
            raise NoTinkerServer(refused.message) from refused
        except self._sdk.TinkerError as error:
            raise NoTinkerServer(self._describe(error)) from error
        longest: int | None = models[self.base_model].max_context_length
        return longest

    def close(self) -> None:
        """Release the places of the training runs, and end the session at the server."""
        self._runs.close()
        self._service.holder.close()

    async def load(self, name: str, folder: Path) -> None:
        """Load the adapter of a version's folder under a name.

        Raises:
            Refused: when the server does not have it.
        """
        try:
            weights = read_tinker_weights(folder)
        except BadModel as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        if weights is None or weights.sampler is None:
            raise Refused(
                HTTPStatus.BAD_REQUEST,
                f"'{folder}' has no tinker.json with a path of its weights: it was not trained by "
                "a Tinker server, which samples only what it has trained. Serve it with vLLM.",
            )
        if weights.base_model != self.base_model:
            raise Refused(
                HTTPStatus.BAD_REQUEST,
                f"'{folder}' is an adapter of {weights.base_model}, and the Tinker server samples "
                f"{self.base_model}.",
            )
        if self._is_skyrl and weights.state is not None:
            self._states[weights.sampler] = weights.state
        await self._try(weights.sampler)
        self.adapters[name] = weights.sampler

    async def unload(self, name: str) -> bool:
        """Forget an adapter, whose place is free then; return whether there was one."""
        path = self.adapters.pop(name, None)
        if path is not None and path not in self.adapters.values():
            self._clients.pop(path, None)
            self._states.pop(path, None)
            self._runs.release(path)
            await asyncio.to_thread(self._runs.wait)
        return path is not None

    async def sample(
        self, name: str | None, prompt: list[int], count: int, options: dict[str, Any]
    ) -> Any:
        """Return the SDK's response with `count` answers of a model; None: the base.

        Raises:
            Refused: when the server refuses the request, or has failed.
        """
        path = None if name is None else self.adapters[name]
        answer = await self._sample(path, prompt, count, options)
        if any(each.logprobs is None for each in answer.sequences):
            raise Refused(
                HTTPStatus.BAD_GATEWAY,
                f"The Tinker server at {self.base_url} returns no log-probabilities.",
            )
        return answer

    async def _sample(
        self, path: str | None, prompt: list[int], count: int, options: dict[str, Any]
    ) -> Any:
        types = self._sdk.types
        tokens, params = types.ModelInput.from_ints(prompt), types.SamplingParams(**options)
        for is_last in (False, True):
            client = None
            try:
                client = await self._open(path)
                return await client.sample_async(tokens, count, params)
            except (self._sdk.TinkerError, ValueError) as error:
                if is_last or not _is_loss(error):
                    raise self._refusal(path, error) from error
                if client is self._clients.get(path):  # another call may have opened a new one
                    self._clients.pop(path, None)
        raise AssertionError("unreachable")

    async def _open(self, path: str | None) -> Any:
        """Return the sampling client of a path, a new one if there is none."""
        async with self._opening:
            if path in self._clients:
                return self._clients[path]
            if path is not None and path in self._states:
                client = await asyncio.to_thread(self._runs.load, path, self._states[path])
            else:
                base = self.base_model if path is None else None
                create = self._service.create_sampling_client_async
                client = await create(model_path=path, base_model=base)
            self._observe(client)
            self._clients[path] = client
            return client

    async def _try(self, path: str | None) -> None:
        """Sample one token, which shows whether the server has the weights."""
        await self._sample(path, [0], 1, {"max_tokens": 1})

    def _observe(self, client: Any) -> None:
        """Note why requests of a client wait: the SDK repeats them without a word."""
        send = client._send_asample_request

        async def observed(*arguments: Any) -> Any:
            try:
                sent = await send(*arguments)
            except self._sdk.TinkerError as error:
                if not isinstance(error, self._sdk.APIStatusError) or error.status_code >= 500:
                    self._note(f"the Tinker server at {self.base_url} does not answer: {error}")
                raise
            if sent is not None:
                self._waits = (0.0, "")
            else:
                self._note(
                    f"the Tinker server at {self.base_url} refuses calls for its quota or an open "
                    "bill (status 429 or 402); they are sent again until it takes them"
                )
            return sent

        def paused(state: Any, reason: str | None) -> None:
            if state.value != "active":
                why = reason or state.value
                self._note(f"the Tinker server at {self.base_url} has paused sampling: {why}")

        client._send_asample_request = observed
        client.on_queue_state_change = paused

    def _note(self, reason: str) -> None:
        now = time.monotonic()
        if reason != self._waits[1] or now - self._logged > LOG_PAUSE:
            self._logged = now
            self._log(f"calls wait: {reason}")
        self._waits = (now, reason)

    def _refusal(self, path: str | None, error: Exception) -> Refused:
        """Return what a failure of the server is for the gateway."""
        if _is_loss(error) and path is not None:
            return Refused(
                HTTPStatus.NOT_FOUND,
                f"The Tinker server at {self.base_url} does not have the weights {path} any more "
                f"({error}). Serve a version that it has, or train on from one.",
            )
        if FULL in str(error):
            return Refused(HTTPStatus.INSUFFICIENT_STORAGE, self._describe(error))
        if _is_users(error):
            return Refused(
                HTTPStatus.BAD_REQUEST, f"The Tinker server refuses the request: {error}"
            )
        return Refused(HTTPStatus.SERVICE_UNAVAILABLE, self._describe(error))

    def _describe(self, error: Exception) -> str:
        if FULL in str(error):
            return (
                f"All places for adapters at the Tinker server at {self.base_url} are taken. Start "
                "it with more (`max_lora_adapters`), or wait five minutes: then it gives up those "
                "of dead sessions."
            )
        status = getattr(error, "status_code", None)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return f"The Tinker server at {self.base_url} refuses the key in TINKER_API_KEY."
        return (
            f"The Tinker server at {self.base_url} failed with SDK {self._sdk.__version__}: "
            f"{type(error).__name__}: {error} If the server is of another version, install its SDK "
            f"({VERSIONS}) into a folder, and set LTRAIN_TINKER to it."
        )

    def _probe_url(self) -> None:
        """Check that a Tinker server of the SDK's protocol answers."""
        url = f"{self.base_url.rstrip('/')}/api/v1/healthz"
        try:
            response = httpx.get(url, timeout=PROBE_TIMEOUT, follow_redirects=False)
        except httpx.HTTPError as error:
            raise NoTinkerServer(
                f"No Tinker server answers at {self.base_url}: {error}. Start it, or correct "
                "base_url."
            ) from error
        if response.status_code == HTTPStatus.NOT_FOUND:
            raise NoTinkerServer(
                f"The server at {self.base_url} has no /api/v1/healthz: it is not a Tinker server."
            )

    def _describes_itself(self) -> bool:
        """Return whether the server describes its API, as SkyRL's do."""
        url = f"{self.base_url.rstrip('/')}/openapi.json"
        try:
            response = httpx.get(url, timeout=PROBE_TIMEOUT, follow_redirects=False)
        except httpx.HTTPError:
            return False
        return response.status_code == HTTPStatus.OK

    def _require_served(self, models: list[str]) -> None:
        if self.base_model not in models:
            raise NoTinkerServer(
                f"The Tinker server at {self.base_url} has no base model '{self.base_model}'. "
                f"Choose from: {', '.join(map(str, models)) or 'none'}."
            )


def _read(file: Path | None) -> list[str]:
    """Return the runs that a file names; none if it is absent or damaged."""
    if file is None:
        return []
    with suppress(OSError, ValueError):
        return [run for run in json.loads(file.read_text()) if isinstance(run, str)]
    return []


def _pool_type() -> Any:
    from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

    return ClientConnectionPoolType.TRAIN


def _is_loss(error: Exception) -> bool:
    """Return whether the server does not know the session, the request or the weights any more."""
    status = getattr(error, "status_code", None)
    lost = "status 404" in str(error) or UNLOADED.search(str(error)) is not None
    return status in LOST or (isinstance(error, ValueError) and lost)


def _is_users(error: Exception) -> bool:
    """Return whether the request is at fault."""
    status = getattr(error, "status_code", None)
    if status is not None:
        return status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
    return str(getattr(error, "category", "")).lower().endswith("user")
