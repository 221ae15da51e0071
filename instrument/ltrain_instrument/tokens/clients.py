"""Records token ids and log-probabilities of a policy's calls at the agent's HTTP client."""

import logging
import os
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import wrapt

from ltrain_instrument.errors import BadSetting
from ltrain_instrument.lifecycle import on_shutdown
from ltrain_instrument.privacy import content

if TYPE_CHECKING:
    from ltrain_instrument.tokens.calls import CallRecorder

CLIENTS = {
    "httpx": "httpx:patch_httpx",
    "httpx2": "httpx:patch_httpx",
    "aiohttp": "aiohttp:patch_aiohttp",
    "requests": "requests:patch_requests",
}
"""Client libraries, with the function of this package that patches each."""

_logger = logging.getLogger("ltrain.tokens")


def install() -> None:
    """Record the calls below LTRAIN_POLICY_URLS once the agent imports a client library.

    It runs after the instrumentors. Without the setting it does nothing.
    """
    from ltrain_instrument.tokens.calls import CallRecorder

    try:
        recorder = CallRecorder.from_settings()
    except BadSetting as error:
        _logger.warning("ltrain: no token ids are recorded: %s", error)
        return
    if recorder is not None and not content.is_content_recorded():
        _logger.warning(
            "ltrain: no token ids are recorded: they decode to the text that %s=%s excludes",
            content.SWITCH,
            os.environ[content.SWITCH],
        )
    elif recorder is not None:
        on_shutdown(recorder.end_open_recordings)
        for library, patch in CLIENTS.items():
            wrapt.when_imported(library)(partial(_patch_client, recorder, patch))


def _patch_client(recorder: "CallRecorder", patch: str, module: ModuleType) -> None:
    module_name, _, function = patch.partition(":")
    try:
        getattr(import_module(f"{__package__}.{module_name}"), function)(recorder, module)
    except Exception as error:  # an unknown version of the library: its import must not fail
        _logger.warning(
            "ltrain: no token ids are recorded for calls through %s: %r", module.__name__, error
        )
