"""Sends the spans that dead processes left in a folder, for a caller that knows they are dead."""

from pathlib import Path

from ltrain_instrument.delivery.otlp_client import Authorization
from ltrain_instrument.delivery.segment import SUFFIX
from ltrain_instrument.delivery.spool import Spool


def send_leftover_spans(
    directory: Path,
    endpoint: str | None = None,
    *,
    timeout: float,
    authorization: Authorization | None = None,
) -> bool:
    """Send the spans in a folder; return whether the collector has all of them.

    Spans that it does not accept within `timeout` seconds stay on disk.
    """
    if not any(directory.glob(f"*{SUFFIX}")):
        return True
    spool = Spool(directory, endpoint, authorization=authorization)
    try:
        # A spool skips files that it cannot read or move
        return spool.flush(timeout, wait_if_away=False) and not any(directory.glob(f"*{SUFFIX}"))
    finally:
        spool.close(0)
