"""Counts of requests that a server refuses before its application reads them, by reason."""

from collections import Counter
from enum import StrEnum


class RefusalReason(StrEnum):
    """Why a request was refused."""

    ORIGIN = "origin"
    """It carries an `Origin`: a web page sent it."""
    FETCH_SITE = "fetch_site"
    """Its `Sec-Fetch-*` headers show that a page of another site sent it."""
    HOST = "host"
    """Its `Host` is not allowed: a page can bind its own name to this machine."""
    HEADERS = "headers"
    """Its request line and headers exceed the limit."""
    DESCRIPTORS = "descriptors"
    """The process has too many open descriptors for another connection."""
    KEYS = "keys"
    """The store's keys or its secret are damaged, so no key can be verified."""
    DENIED = "denied"
    """Its key is missing, unknown or has the wrong role, or its statement needs an admin key."""


class RefusalCounts:
    """Counts since the process started; used from one event loop."""

    def __init__(self) -> None:
        self.counts: Counter[RefusalReason] = Counter({reason: 0 for reason in RefusalReason})

    def add(self, reason: RefusalReason) -> None:
        self.counts[reason] += 1

    def by_reason(self) -> dict[str, int]:
        """Return every reason with its count."""
        return {str(reason): count for reason, count in self.counts.items()}
