"""The gateway's HTTP routes for the loop: which version of a policy is served, and another one."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http import HTTPStatus
from typing import TypeVar

from opentelemetry.trace import Tracer
from pydantic import BaseModel, Field, StrictBool, StrictInt, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ltrain_collector.access import Kind
from ltrain_instrument import attributes
from ltrain_train.errors import describe_fault
from ltrain_train.gateway.attempts import AttemptRegistry
from ltrain_train.gateway.errors import Refused, json_response, read_body
from ltrain_train.gateway.keys import Keyring, bearer_key
from ltrain_train.gateway.serving.publication import Publication
from ltrain_train.gateway.serving.publish_choice import PublishChoice
from ltrain_train.gateway.serving.served_policies import ServedPolicies
from ltrain_train.gateway.serving.turns import VllmTurns
from ltrain_train.policy import SharedWeights
from ltrain_transforms.deployment_file import Stage
from ltrain_transforms.errors import BadDeployment

MAX_BYTES = 16 << 20
"""Maximum bytes of a request to publish; a description of weights has about 100 for each tensor."""

Body = TypeVar("Body", bound=BaseModel)


class AdminRoutes:
    """Routes that need an admin key."""

    def __init__(
        self,
        keys: Keyring,
        policies: ServedPolicies,
        attempts: AttemptRegistry,
        tracer: Tracer,
        publish_choice: PublishChoice | None = None,
        turns: VllmTurns | None = None,
    ) -> None:
        """Prepare the routes; without `publish_choice` learners publish merged weights.

        Args:
            tracer: records each stage of a version.
        """
        self._keys, self._policies, self._attempts = keys, policies, attempts
        self._tracer = tracer
        self._turns = turns or VllmTurns()
        self._publish_choice = publish_choice or PublishChoice("merged", "there was no choice")

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/admin/policies/{name}", self.policy_version),
            Route("/admin/policies/{name}/current", self.publish, methods=["POST"]),
            Route("/admin/policies/{name}/stage", self.deploy, methods=["POST"]),
            Route("/admin/policies/{name}/freeze", self.freeze, methods=["POST"]),
            Route("/admin/policies/{name}/offer", self.offer, methods=["POST"]),
            Route("/admin/policies/{name}/calls", self.call_seconds),
            Route("/admin/sleep", self.sleep, methods=["POST"]),
            Route("/admin/wake", self.wake, methods=["POST"]),
        ]

    async def policy_version(self, request: Request) -> Response:
        """Return the served version."""
        publication = self._require(request)
        version = publication.require_version()
        path = publication.policies.path(publication.policy, version)
        return json_response(
            {
                "policy": publication.policy,
                "current": version,
                "path": str(path),
                "publish": self._publish_choice.artifact,
                "publish_reason": self._publish_choice.reason,
                "shares": publication.upstream.shares,
            }
        )

    async def publish(self, request: Request) -> Response:
        """Load a version into the policy server and, unless told otherwise, make it current."""
        publication = self._require(request)
        body = await _parse_body(request, PublicationBody)
        version = body.version
        async with self._turns.publishing():
            with _refusing():
                seconds = await publication.load(version, current=body.current, shared=body.weights)
        return json_response({"policy": publication.policy, "current": version, "seconds": seconds})

    async def deploy(self, request: Request) -> Response:
        """Move a version to a stage on its way to the users."""
        publication = self._require(request)
        body = await _parse_body(request, StageBody)
        waits = self._turns.publishing() if body.stage is not Stage.RETIRED else nullcontext()
        async with waits:
            with _refusing():
                deployment = await publication.deploy(**body.model_dump())
        values: dict[str, str | int | float] = {
            attributes.POLICY_NAME: publication.policy,
            attributes.POLICY_VERSION: deployment.version,
            attributes.DEPLOY_EXPERIMENT: deployment.experiment,
            attributes.DEPLOY_STAGE: deployment.stage,
            attributes.DEPLOY_SHARE: deployment.share,
            attributes.DEPLOY_BY: deployment.by,
            attributes.DEPLOY_REASON: deployment.reason,
        }
        self._tracer.start_span(attributes.SPAN_DEPLOY, attributes=values).end()
        return json_response(deployment.model_dump())

    async def freeze(self, request: Request) -> Response:
        """Let the current version answer all calls, and no other one become current."""
        publication = self._require(request)
        body = await _parse_body(request, FreezeBody)
        publication.freeze(body.by, body.reason)
        return json_response({"current": publication.require_version()})

    async def offer(self, request: Request) -> Response:
        """Begin to load weights in a learner's memory, whose version is still being written."""
        publication = self._require(request)
        await publication.offer(await _parse_body(request, SharedWeights))
        return json_response({})

    async def call_seconds(self, request: Request) -> Response:
        """Return how long the calls of each open attempt took."""
        self._require(request)
        return json_response({"seconds": self._attempts.call_seconds()})

    async def sleep(self, request: Request) -> Response:
        """Leave the GPU to a learner; calls wait until a version is published."""
        self._verify(request)
        await self._turns.sleep()
        return json_response({})

    async def wake(self, request: Request) -> Response:
        """Take the GPU back when the learner has left it; calls still wait."""
        self._verify(request)
        await self._turns.wake()
        return json_response({})

    def _require(self, request: Request) -> Publication:
        self._verify(request)
        return self._policies.require(request.path_params["name"])

    def _verify(self, request: Request) -> None:
        self._keys.verify(bearer_key(request.headers.get("authorization")), Kind.ADMIN)


class PublicationBody(BaseModel):
    """The body of a request to publish."""

    version: StrictInt
    current: StrictBool = True
    """Whether it becomes the current version on disk."""
    weights: SharedWeights | None = None
    """The memory of a learner that has its weights, too."""


class FreezeBody(BaseModel):
    """The body of a request to freeze a policy."""

    by: str = Field(max_length=200)
    reason: str = Field(default="", max_length=2000)


class StageBody(FreezeBody):
    """The body of a request to move a version to a stage."""

    version: StrictInt
    stage: Stage
    share: float = Field(default=0.0, ge=0, le=1)
    """The share of conversations that a canary answers."""


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except BadDeployment as error:
        raise Refused(HTTPStatus.CONFLICT, str(error)) from None


async def _parse_body(request: Request, model: type[Body]) -> Body:
    try:
        return model.model_validate_json(await read_body(request, "publication", MAX_BYTES))
    except ValidationError as error:
        sentence = 'The request names no version. Send a JSON object such as {"version": 3}.'
        if not any(fault["loc"] in ((), ("version",), ("current",)) for fault in error.errors()):
            sentence = f"The request describes no weights: {describe_fault(error)}"
        raise Refused(HTTPStatus.BAD_REQUEST, sentence) from None
