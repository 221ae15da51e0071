"""Warnings of the spool: one of each kind."""

import logging

_logger = logging.getLogger("ltrain.spool")


class WarnOnce:
    """Logs the first warning of each kind."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def __call__(self, text: str, kind: str) -> None:
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        _logger.warning("ltrain: %s", text)
