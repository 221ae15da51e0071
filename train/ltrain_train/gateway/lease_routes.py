"""The HTTP routes of the lease queue: runners offer attempts, and workers take them.

A request that waits is answered as soon as something changes that concerns it.
"""

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus
from importlib import metadata
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ltrain_collector.access import Kind
from ltrain_train.errors import describe_fault
from ltrain_train.gateway.errors import Refused, read_body
from ltrain_train.gateway.keys import Keyring, bearer_key
from ltrain_train.leases import (
    Finished,
    Heartbeat,
    Leased,
    LeaseQueue,
    Offer,
    Refusals,
    Results,
    ResultsRequest,
    Room,
    Take,
    WorkerOrders,
)

MAX_MESSAGE_BYTES = 128 << 20
"""Maximum bytes of a message; results of 32 MiB may travel together, and twice as long as JSON."""
MAX_WAIT = 20.0
"""Maximum seconds that a request waits."""
EXPIRE_INTERVAL = 1.0
"""Seconds between two searches for leases that ended, while a request waits."""

Message = TypeVar("Message", bound=BaseModel)
Answer = TypeVar("Answer", Leased, Results)


class LeaseRoutes:
    """The routes of one queue."""

    def __init__(self, keys: Keyring) -> None:
        self._keys, self._queue = keys, LeaseQueue()
        self._changed = asyncio.Event()

    def routes(self) -> list[Route]:
        """Return the routes of runners and of workers."""
        return [
            Route("/admin/leases/offer", self.offer, methods=["POST"]),
            Route("/admin/leases/results", self.results, methods=["POST"]),
            Route("/admin/leases/withdraw", self.withdraw, methods=["POST"]),
            Route("/worker/take", self.take, methods=["POST"]),
            Route("/worker/heartbeat", self.heartbeat, methods=["POST"]),
            Route("/worker/results", self.finish, methods=["POST"]),
        ]

    async def offer(self, request: Request) -> Response:
        """Add a runner's attempts, and end those that are overdue."""
        offer = await self._read(request, Offer)
        _require_same_version("runner", offer.version)
        self._queue.offer(offer.runner, offer.attempts)
        self._queue.time_out(offer.runner, offer.overdue)
        self._notify()
        return _answer(Room(room=self._queue.room(offer.runner)))

    async def results(self, request: Request) -> Response:
        """Return a runner's results; wait for one, or for a change of its room."""
        query = await self._read(request, ResultsRequest)
        room = self._queue.room(query.runner)
        answer = await self._wait(
            lambda: self._queue.results(query),
            lambda found: bool(found.results or found.unknown or found.room != room),
            query.wait,
            request,
        )
        return _answer(answer)

    async def withdraw(self, request: Request) -> Response:
        """Forget a runner that stops, and its attempts."""
        self._queue.remove_runner((await self._read(request, Offer)).runner)
        self._notify()
        return _answer(Room(room=0))

    async def take(self, request: Request) -> Response:
        """Lease attempts to a worker; wait for one."""
        take = await self._read(request, Take)
        _require_same_version("worker", take.version)
        answer = await self._wait(
            lambda: Leased(attempts=self._queue.take(take)),
            lambda leased: bool(leased.attempts),
            take.wait,
            request,
        )
        return _answer(answer)

    async def heartbeat(self, request: Request) -> Response:
        """Renew a worker's leases and return what it must end."""
        beat = await self._read(request, Heartbeat)
        if beat.leaves:
            self._queue.remove_worker(beat.worker)
            self._notify()
            return _answer(WorkerOrders(overdue=[], lost=beat.running))
        return _answer(self._queue.renew(beat.worker, beat.running))

    async def finish(self, request: Request) -> Response:
        """Keep a worker's results."""
        finished = await self._read(request, Finished)
        refused = self._queue.finish(finished.worker, finished.results)
        self._notify()
        return _answer(Refusals(refused=refused))

    async def _read(self, request: Request, kind: type[Message]) -> Message:
        """Check the key of a request and parse its body."""
        key = bearer_key(request.headers.get("authorization"))
        is_admin = request.url.path.startswith("/admin/")
        self._keys.verify(key, Kind.ADMIN if is_admin else Kind.WORKER)
        try:
            message = kind.model_validate_json(
                await read_body(request, "message", MAX_MESSAGE_BYTES)
            )
        except ValidationError as error:
            sentence = f"{describe_fault(error, 'the body')}."
            raise Refused(HTTPStatus.BAD_REQUEST, sentence) from error
        if self._queue.expire():
            self._notify()
        return message

    async def _wait(
        self,
        ask: Callable[[], Answer],
        is_enough: Callable[[Answer], bool],
        seconds: float,
        request: Request,
    ) -> Answer:
        """Return the first answer that is enough, or the last one after `seconds`."""
        until = time.monotonic() + min(seconds, MAX_WAIT)
        while not is_enough(answer := ask()) and (left := until - time.monotonic()) > 0:
            await self._wait_for_change(min(left, EXPIRE_INTERVAL))
            if await request.is_disconnected():
                break
        return answer

    async def _wait_for_change(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            if self._queue.expire():
                self._notify()

    def _notify(self) -> None:
        """Wake every request that waits."""
        self._changed.set()
        self._changed = asyncio.Event()


def _require_same_version(program: str, version: str) -> None:
    """Check that a worker or a runner has the gateway's version of ltrain."""
    own = metadata.version("ltrain")
    if version != own:
        raise Refused(
            HTTPStatus.CONFLICT,
            f"This {program} has ltrain {version} and the gateway has ltrain {own}. Install "
            f"ltrain=={own} where the {program} runs.",
        )


def _answer(message: BaseModel) -> Response:
    return Response(message.model_dump_json(), media_type="application/json")
