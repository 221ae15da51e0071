"""The connection to a server of the Tinker API, whose errors become sentences.

Each answer of the server is a sign of life, and so a heartbeat of the learner: it computes, or it
lets the learner wait. The SDK repeats what a full quota (429) or an empty account (402) refuses.
"""

import os
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import tinker
from tinker import types

from ltrain_train.errors import BadRun, LearnerFailed, LostRun
from ltrain_train.learner.heartbeat import FILE, INTERVAL
from ltrain_train.overlays import OLD_SDK, SKYRL_SDK, TINKER
from ltrain_transforms.recipe import TINKER_KEY, Tinker

Result = TypeVar("Result")
SERVICE = "tinker.thinkingmachines.ai"
"""The name of the server without an address."""
TIMEOUT = 60.0
"""Seconds for one answer; a computation is polled in shorter requests."""
BACKGROUND = ("session_heartbeat", "dynamic_config", "telemetry")
"""The last parts of the paths whose answers show no progress."""
UNLOADED = re.compile(r"Model \S+ not (loaded|found)")
"""The error of a server that was started again, and still knows the run by name."""
FULL = "Maximum number of LoRA adapters"
"""The error of a server whose places are all taken."""


@dataclass(slots=True)
class Waits:
    """The requests that a quota refused, since the last report."""

    count: int = 0
    status: int = 0
    began: float = 0.0
    ended: float = 0.0

    def add(self, status: int) -> None:
        """Add a refused request."""
        self.ended = time.monotonic()
        self.began = self.began if self.count else self.ended
        self.count, self.status = self.count + 1, status

    def take(self) -> tuple[str, ...]:
        """Return a sentence about the waits since the last call, if there were some."""
        if not self.count:
            return ()
        sentence = (
            f"The Tinker server refused {self.count} requests with status {self.status} "
            f"({'its quota is used up' if self.status == 429 else 'the account has no credit'}), "
            f"and the learner waited about {self.ended - self.began:.0f} s for it."
        )
        self.count = 0
        return (sentence,)


class Server:
    """A session at a server."""

    def __init__(self, options: Tinker, model: str, scratch: Path | None = None) -> None:
        """Open a session.

        Args:
            model: the server's name of the base.
            scratch: the folder of the heartbeat; None: there is none.

        Raises:
            BadRun: when the server cannot train the model, or needs another SDK.
        """
        self.options, self.model = options, model
        self.waits = Waits()
        self._heartbeat = None if scratch is None else scratch / FILE
        self._beaten = float("-inf")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tinker")
        self.clips = self._check_sdk()
        """Whether it limits the norm of gradients, as documented; a server of SkyRL does not."""
        self.service = self.wait("open a session", self._open)
        self._require_model()

    @property
    def name(self) -> str:
        """The address of the server, or the name of the service."""
        return self.options.base_url or SERVICE

    def reopen(self) -> None:
        """Open a new session, since the server may have lost this one."""
        self.close()
        self.service = self.wait("open a session", self._open)

    def close(self) -> None:
        """End the session's heartbeats."""
        self.service.holder.close()

    def wait(self, doing: str, start: Callable[[], Any]) -> Any:
        """Return the result of a function that calls the SDK, or of the future that it returns.

        Args:
            doing: what it does, for the error.

        Raises:
            LearnerFailed: when the server refuses or cannot be reached.
        """

        def run() -> Any:
            found = start()
            return found.result() if hasattr(found, "result") else found

        future: Future[Any] = self._pool.submit(run)
        try:
            return future.result()
        except (tinker.TinkerError, ValueError, TimeoutError, httpx.HTTPError) as error:
            raise self._explain(error, doing) from error

    def unload(self, run: str) -> None:
        """Release the place of a training run; nothing happens if the server does not know it."""

        async def unload() -> None:
            with self.service.holder.aclient(_pool_type()) as client:
                await client.models.unload(request=types.UnloadModelRequest(model_id=run))

        # the service itself releases a place when the session ends
        with suppress(tinker.TinkerError, ValueError, TimeoutError):
            self.service.holder.run_coroutine_threadsafe(unload()).result(TIMEOUT)

    def archive_url(self, path: str) -> str:
        """Return the address of the archive of a sampler's weights."""
        run, _, checkpoint = path.removeprefix("tinker://").partition("/")
        rest = self.service.create_rest_client()
        found = self.wait(
            f"find the archive of {path}", lambda: rest.get_checkpoint_archive_url(run, checkpoint)
        )
        return str(found.url)

    def _check_sdk(self) -> bool:
        """Check the SDK for a server of one's own, and return whether it clips gradients."""
        if self.options.base_url is None:
            return True
        try:
            answer = httpx.get(f"{self.options.base_url}/openapi.json", timeout=TIMEOUT)
        except httpx.HTTPError as error:
            raise BadRun(
                f"No server of the Tinker API answers at {self.options.base_url} ({error}). Start "
                "it, or correct `base_url` in [train.tinker]."
            ) from error
        if answer.status_code != 200:
            return True  # no server of SkyRL, which describes its API
        described = answer.json()
        expected = SKYRL_SDK if "/api/v1/client/config" in described.get("paths", ()) else OLD_SDK
        if tinker.__version__ != expected:
            raise BadRun(
                f"The server at {self.options.base_url} speaks with the Tinker SDK {expected}, and "
                f"{TINKER.find()} has {tinker.__version__}. Install it with `pip install --no-deps "
                f"--target DIR tinker=={expected}` and the other packages of `make setup-tinker`, "
                f"and set {TINKER.setting.name}=DIR; or start a server of SkyRL 0.4.0."
            )
        options = described["components"]["schemas"]["AdamParams"]["properties"]
        return "grad_clip_norm" in options

    def _open(self) -> Any:
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=20)
        hooks = {"response": [self._note_answer]}
        client = httpx.AsyncClient(
            timeout=TIMEOUT, limits=limits, event_hooks=hooks, follow_redirects=True
        )
        base_url = {} if self.options.base_url is None else {"base_url": self.options.base_url}
        return tinker.ServiceClient(**base_url, api_key=os.environ[TINKER_KEY], http_client=client)

    def _require_model(self) -> None:
        found = self.wait("list its models", self.service.get_server_capabilities)
        names = [each.model_name for each in found.supported_models]
        if self.model not in names:
            raise BadRun(
                f"The Tinker server has no model '{self.model}'. Set `base_model` in "
                f"[train.tinker] to one of: {', '.join(map(str, names))}."
            )

    async def _note_answer(self, response: httpx.Response) -> None:
        if response.status_code in (402, 429):
            self.waits.add(response.status_code)
            print(f"The Tinker server refuses requests: status {response.status_code}.", flush=True)
        if not response.request.url.path.endswith(BACKGROUND):
            self._beat()

    def _beat(self) -> None:
        if self._heartbeat is not None and (now := time.monotonic()) > self._beaten + INTERVAL:
            self._beaten = now
            self._heartbeat.touch()

    def _explain(self, error: Exception, doing: str) -> LearnerFailed | BadRun:
        """Return an error as a sentence."""
        status, text = _status(error), str(error).splitlines()[0]
        again = "The same command continues from the last checkpoint."
        if status == 404 or UNLOADED.search(text):
            return LostRun(
                f"The Tinker server could not {doing}: it does not know the training run (any "
                f"more). It was restarted, or the session timed out. {again}"
            )
        if status in (401, 403):
            return BadRun(
                f"The Tinker server refused the key in {TINKER_KEY} (status {status}): {text}"
            )
        if status in (402, 429):
            return LearnerFailed(
                f"The Tinker server could not {doing}: {' '.join(self.waits.take())} Wait, or "
                f"raise the quota. {again}"
            )
        if FULL in text:
            return LearnerFailed(
                "All places for adapters at the Tinker server are taken. Start it with more "
                "(`max_lora_adapters`), or wait five minutes: then it gives up those of dead runs."
            )
        if "only supports as proto" in text or status in (415, 422):
            return BadRun(
                f"The Tinker server could not {doing}, because it needs another SDK than "
                f"{tinker.__version__}, an older one: {text}. Start a server of SkyRL 0.4.0, or "
                f"name a folder with its SDK in {TINKER.setting.name}."
            )
        return LearnerFailed(f"The Tinker server could not {doing}: {text} {again}")


def _status(error: BaseException | None) -> int:
    """Return the HTTP status that caused an error; 0: none did."""
    while error is not None:
        if isinstance(error, tinker.APIStatusError):
            return int(error.status_code)
        error = error.__cause__
    return 0


def _pool_type() -> Any:
    from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

    return ClientConnectionPoolType.TRAIN
