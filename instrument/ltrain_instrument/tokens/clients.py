"""Records token ids and log-probabilities of a policy's calls at the agent's HTTP client."""

import logging
import os
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import wrapt

from ltrain_instrument import patches
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.lifecycle import on_shutdown
from ltrain_instrument.privacy import content

if TYPE_CHECKING:
    from ltrain_instrument.tokens.calls import CallRecorder

CLIENTS = {
    "httpx": (patches.HTTPX, "httpx:patch_httpx"),
    "httpx2": (patches.HTTPX, "httpx:patch_httpx"),
    "aiohttp": (patches.AIOHTTP, "aiohttp:patch_aiohttp"),
    "requests": (patches.REQUESTS, "requests:patch_requests"),
}
"""Client libraries, with the patch of each and the function of this folder that applies it."""

_logger = logging.getLogger("ltrain.tokens")


def install() -> None:
    """Record the calls below LTRAIN_POLICY_URLS once the agent imports a client library.

    It runs after the instrumentors. Without the setting it does nothing.
    """
    if patches.is_sdk_disabled():
        return
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
        for library, (patch, function) in CLIENTS.items():
            if patch.is_enabled():
                wrapt.when_imported(library)(partial(_patch_client, recorder, function))


def _patch_client(recorder: "CallRecorder", function: str, module: ModuleType) -> None:
    module_name, _, name = function.partition(":")
    try:
        getattr(import_module(f"{__package__}.{module_name}"), name)(recorder, module)
    except Exception as error:  # an unknown version of the library: its import must not fail
        _logger.warning(
            "ltrain: no token ids are recorded for calls through %s: %r", module.__name__, error
        )
