"""What dead processes left in a folder, for who knows that they are dead."""

from pathlib import Path

from ltrain_instrument.delivery import Authorization
from ltrain_instrument.segment import SUFFIX
from ltrain_instrument.spool import Spool


def send_what_is_left(
    directory: Path,
    endpoint: str | None = None,
    *,
    timeout: float,
    authorization: Authorization | None = None,
) -> bool:
    """Send what dead processes left in a folder; return whether the collector has all of it.

    What it does not take within `timeout` seconds stays on disk.
    """
    if not any(directory.glob(f"*{SUFFIX}")):
        return True
    spool = Spool(directory, endpoint, authorization=authorization)
    try:
        # A spool passes over what it cannot read or move
        return spool.flush(timeout, patient=False) and not any(directory.glob(f"*{SUFFIX}"))
    finally:
        spool.close(0)
