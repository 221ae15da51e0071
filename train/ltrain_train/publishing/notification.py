"""Tells a person or a program of a decision: a POST to a URL, or a command."""

import json
import logging
import shlex
import subprocess
from collections.abc import Mapping
from typing import Any

import httpx

TIMEOUT = 30.0
"""Seconds for the request or the command."""

_logger = logging.getLogger("ltrain.deploy")


def notify(target: str, event: Mapping[str, Any]) -> None:
    """Send an event as JSON; a fault is logged, and nothing is sent again.

    Args:
        target: a URL, which gets a POST, or a command, which gets the event at its standard input.
        event: its `text` is a sentence, the field that Slack shows.
    """
    body = json.dumps(event)
    try:
        if target.startswith(("http://", "https://")):
            headers = {"content-type": "application/json"}
            httpx.post(target, content=body, headers=headers, timeout=TIMEOUT).raise_for_status()
        else:
            command = shlex.split(target)
            subprocess.run(command, input=body, text=True, timeout=TIMEOUT, check=True)
    except (httpx.HTTPError, OSError, ValueError, subprocess.SubprocessError) as error:
        # the address may have a key
        fault = type(error).__name__ if isinstance(error, httpx.HTTPError) else str(error)
        _logger.warning("ltrain: notify of [deploy] failed: %s. The decision holds.", fault)
