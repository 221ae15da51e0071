"""Leases on attempts: the queue from which workers on other machines take them."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
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

open_face(__name__)
