"""Other models that agents call: each has a server and a key of its own, and is never trained.

Their calls are forwarded as they are, and traced as those of the policy without its tokens.
"""

import os
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

import aiohttp
from opentelemetry.trace import Span
from pydantic import ValidationError

from ltrain_collector.access import AttemptKey
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.tokens import Operation, Request, unchanged_request
from ltrain_train.errors import describe_fault
from ltrain_train.gateway.apis import ClientCall
from ltrain_train.gateway.exchange import Call, Exchange
from ltrain_train.gateway.serving.upstream import (
    CONNECT_TIMEOUT,
    JSON,
    PATHS,
    request_data,
)
from ltrain_transforms.recipe import Route


class BadRoute(LtrainError, ValueError):
    """A text that is not a route, or a route whose key is not set."""


class RouteServer:
    """The server of one model."""

    def __init__(self, route: Route, session: aiohttp.ClientSession) -> None:
        self._session, self._url = session, route.url.rstrip("/")
        self._headers = dict(JSON)
        if route.key is not None:
            self._headers["authorization"] = f"Bearer {os.environ[route.key]}"
        self._served_as = route.served_as or route.model

    def post(
        self, operation: Operation, body: bytes
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Post a call; leaving the context before its end aborts the generation."""
        url = f"{self._url}{PATHS[operation].removeprefix('/v1')}"
        return self._session.post(
            url, data=request_data(body), headers=self._headers, allow_redirects=False
        )

    def request(self, call: ClientCall, claims: AttemptKey | None) -> Request:
        """Return the request that the server gets."""
        return unchanged_request(call.operation, call.body, self._served_as)

    def describe(self, span: Span) -> None:
        """Set nothing: the span of such a call has no policy."""

    def exchange(self, call: Call) -> Exchange:
        """Return the exchange that forwards a call."""
        return Exchange(call, self)


class Routes:
    """The servers of other models, by the name that agents request."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self._routes = {route.model: route for route in routes}
        self._servers: dict[str, RouteServer] = {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def models(self) -> list[str]:
        """The names that agents may request."""
        return list(self._routes)

    def find(self, model: str) -> RouteServer | None:
        """Return the server of a model; None if the model has no route."""
        route = self._routes.get(model)
        if route is None:
            return None
        if model not in self._servers:
            self._servers[model] = RouteServer(route, self._open_session())
        return self._servers[model]

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, auto_decompress=False
            )
        return self._session


def parse_routes(texts: Iterable[str], policies: Iterable[str]) -> tuple[Route, ...]:
    """Return the routes of the options `--route`."""
    routes = tuple(map(_parse_route, texts))
    names = list(policies)
    for route in routes:
        if route.model in names:
            raise BadRoute(
                f"Two servers are named for model '{route.model}'. Remove one --route, or choose "
                "another name with served_as."
            )
        names.append(route.model)
        if route.key is not None and not os.environ.get(route.key):
            raise BadRoute(
                f"The key of model '{route.model}' is not set. Set {route.key} in the environment."
            )
    return routes


def _parse_route(text: str) -> Route:
    """Parse `MODEL=URL` or the JSON object of a route."""
    model, equals, url = text.partition("=")
    try:
        if text.startswith("{"):
            return Route.model_validate_json(text)
        return Route(model=model, url=url if equals else "")
    except ValidationError as error:
        raise BadRoute(
            f"--route {text}: {describe_fault(error)}. Write MODEL=URL, or "
            '{"model": "gpt-5", "url": "https://api.openai.com/v1", "key": "OPENAI_API_KEY"}.'
        ) from error
