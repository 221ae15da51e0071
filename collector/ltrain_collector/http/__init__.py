"""Limits, origin checks and compression, which every HTTP server of ltrain adds to starlette."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.http.accepting import WaitingServer
    from ltrain_collector.http.browsers import (
        DENIED_STATUSES,
        ORIGIN,
        USER_SITES,
        AllowedHosts,
        BrowserGuard,
        set_headers,
    )
    from ltrain_collector.http.budget import MAX_REQUEST_BYTES, MemoryBudget, RequestBuffer
    from ltrain_collector.http.connection import MAX_HEAD_BYTES
    from ltrain_collector.http.decompression import Zlib, inflate, too_large
    from ltrain_collector.http.descriptors import Descriptors, require_descriptors
    from ltrain_collector.http.listeners import (
        Tls,
        bind_port,
        check_tls,
        listener_address,
        local_url,
        open_listener,
        server_config,
        url_host,
    )
    from ltrain_collector.http.refusals import RefusalCounts, RefusalReason

open_face(__name__)
