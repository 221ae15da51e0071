"""The settings of uvicorn for every HTTP server of ltrain."""

from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ltrain_collector.http.connection import connection_factory
from ltrain_collector.http.descriptors import Descriptors, raise_limit
from ltrain_collector.http.listeners import Tls
from ltrain_collector.http.refusals import RefusalCounts


def server_config(
    app: ASGIApp, tls: Tls | None, refusals: RefusalCounts, shutdown_seconds: int, **settings: Any
) -> uvicorn.Config:
    """Return the configuration of a server, and raise this process's limit of descriptors.

    Args:
        shutdown_seconds: how long open requests get to finish after SIGTERM.
        settings: further settings of uvicorn.
    """
    raise_limit()
    return uvicorn.Config(
        app,
        http=connection_factory(Descriptors.measure(), refusals),
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=shutdown_seconds,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
        **settings,
    )
