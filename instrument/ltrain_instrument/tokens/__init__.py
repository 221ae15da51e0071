"""Token ids and log-probabilities of a policy's calls, recorded at the agent's HTTP client."""

import logging
import os
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import wrapt

from ltrain_instrument import content
from ltrain_instrument.capture import on_farewell
from ltrain_instrument.errors import BadSetting

if TYPE_CHECKING:
    from ltrain_instrument.tokens.calls import Calls

CLIENTS = {"httpx": "httpx", "httpx2": "httpx", "aiohttp": "aiohttp", "requests": "requests"}
"""Client libraries, and the module here that knows them."""

_logger = logging.getLogger("ltrain.tokens")


def install() -> None:
    """Record the calls below LTRAIN_POLICY_URLS, from when the agent imports a client library.

    It runs after the instrumentors. Without the setting it does nothing.
    """
    from ltrain_instrument.tokens.calls import Calls

    try:
        calls = Calls.configured()
    except BadSetting as error:
        _logger.warning("ltrain: no token ids are recorded: %s", error)
        return
    if calls is not None and not content.recorded():
        _logger.warning(
            "ltrain: no token ids are recorded: they decode to the text that %s=%s keeps out",
            content.SWITCH,
            os.environ[content.SWITCH],
        )
    elif calls is not None:
        on_farewell(calls.leave)
        for library, home in CLIENTS.items():
            wrapt.when_imported(library)(partial(_install, calls, home))


def _install(calls: "Calls", home: str, module: ModuleType) -> None:
    try:
        import_module(f"{__name__}.{home}").install(calls, module)
    except Exception as error:  # another version of the library: its import must not fail for it
        _logger.warning(
            "ltrain: no token ids are recorded for calls through %s: %r", module.__name__, error
        )
