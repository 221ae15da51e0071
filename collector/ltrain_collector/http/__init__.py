"""What every HTTP server of ltrain needs beside starlette: limits, origin checks, compression."""

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
from ltrain_collector.http.descriptors import Descriptors
from ltrain_collector.http.listeners import (
    Tls,
    bind_port,
    check_tls,
    listener_address,
    open_listener,
    server_config,
    tls_files,
    url_host,
)
from ltrain_collector.http.refusals import RefusalCounts, RefusalReason

__all__ = [
    "DENIED_STATUSES",
    "MAX_HEAD_BYTES",
    "MAX_REQUEST_BYTES",
    "ORIGIN",
    "USER_SITES",
    "AllowedHosts",
    "BrowserGuard",
    "Descriptors",
    "MemoryBudget",
    "RefusalCounts",
    "RefusalReason",
    "RequestBuffer",
    "Tls",
    "Zlib",
    "bind_port",
    "check_tls",
    "inflate",
    "listener_address",
    "open_listener",
    "server_config",
    "set_headers",
    "tls_files",
    "too_large",
    "url_host",
]
