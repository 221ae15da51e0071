"""Leases on attempts: the queue from which workers on other machines take them."""

from ltrain_train.leases.messages import (
    MAX_SLOTS,
    Finished,
    Heartbeat,
    Leased,
    LeasedAttempt,
    LeaseResult,
    Offer,
    Refusals,
    Results,
    ResultsRequest,
    Room,
    Take,
    WorkerOrders,
)
from ltrain_train.leases.queue import LEASE_SECONDS, LeaseQueue

__all__ = [
    "LEASE_SECONDS",
    "MAX_SLOTS",
    "Finished",
    "Heartbeat",
    "LeaseQueue",
    "LeaseResult",
    "Leased",
    "LeasedAttempt",
    "Offer",
    "Refusals",
    "Results",
    "ResultsRequest",
    "Room",
    "Take",
    "WorkerOrders",
]
