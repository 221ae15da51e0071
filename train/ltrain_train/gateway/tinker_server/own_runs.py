"""The training runs in which a gateway samples adapters at a server of SkyRL, one for each.

SkyRL samples an adapter in the place of the training run that saved it: only while that run is
loaded, and it puts the adapter's weights in place of those that the run has come to. So an adapter
is loaded from its checkpoint into a run that nobody trains. A file names these runs: the next
gateway releases those of one that was killed, since a server has few places for adapters.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

RELEASE_TIMEOUT = 5.0
"""Seconds in which the server releases the places at the end."""


class OwnRuns:
    """The training runs of a gateway by the paths of their adapters."""

    def __init__(self, sdk: Any, service: Any, file: Path | None) -> None:
        """Request the release of the runs that the file names; None: there is no file."""
        self._sdk, self._service, self._file = sdk, service, file
        self._runs: dict[str, str] = {}
        self._releases: list[Any] = []
        """The requests to release runs, which nobody waits for before the end."""
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

    def close(self) -> None:
        """Release all runs."""
        for path in list(self._runs):
            self.release(path)
        for future in self._releases:
            with suppress(self._sdk.TinkerError, ValueError, TimeoutError):
                future.result(RELEASE_TIMEOUT)

    def _request_release(self, run: str) -> None:
        request = self._sdk.types.UnloadModelRequest(model_id=run)

        async def unload() -> None:
            with self._service.holder.aclient(_pool_type()) as client:
                await client.models.unload(request=request)

        self._releases = [each for each in self._releases if not each.future().done()]
        self._releases.append(self._service.holder.run_coroutine_threadsafe(unload()))

    def _write(self) -> None:
        if self._file is not None:
            draft = self._file.with_suffix(".draft")
            draft.write_text(json.dumps(list(self._runs.values())))
            draft.replace(self._file)


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
