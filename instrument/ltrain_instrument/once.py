"""Warnings of the spool, each kind once."""

import logging

_logger = logging.getLogger("ltrain.spool")


class Once:
    """Logs one warning of a kind, and no second."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def __call__(self, text: str, kind: str) -> None:
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        _logger.warning("ltrain: %s", text)
