"""The length of a prompt, as the policy server would tokenise it."""

from http import HTTPStatus
from typing import Any, Protocol

import orjson

from ltrain_train.gateway.apis.request_limits import RequestLimits
from ltrain_train.gateway.apis.response_fields import error_message
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.serving.upstream import Upstream, UpstreamFailed

PROMPT_FIELDS = (
    *("messages", "tools", "chat_template", "chat_template_kwargs"),
    *("add_generation_prompt", "continue_final_message"),
)
"""Fields of a chat completion that change its prompt."""


class Count(Protocol):
    """A route that counts tokens."""

    @property
    def path(self) -> str:
        """The path of its requests, as an API has it."""

    def parse(self, raw: bytes, limits: RequestLimits, model: str = "") -> dict[str, Any]:
        """Parse a request, and return the chat completion with this prompt.

        Raises:
            Refused: as an API's.
        """

    def answer(self, count: int) -> bytes:
        """Return the response with the count."""


async def count_tokens(upstream: Upstream, chat: dict[str, Any], others: list[str]) -> int:
    """Return the number of tokens: the chat template and tokeniser are the served model's.

    Args:
        others: models of other servers.
    """
    if chat["model"] in others:
        raise Refused(
            HTTPStatus.NOT_FOUND,
            f"The gateway counts no tokens of model '{chat['model']}', which another server has. "
            f"Count those of the policy: model '{upstream.model}'.",
        )
    fields = {name: chat[name] for name in PROMPT_FIELDS if name in chat}
    status, body = await upstream.tokenize({"model": upstream.model, **fields})
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        raise Refused(HTTPStatus.BAD_REQUEST, error_message(body))
    try:
        count = orjson.loads(body)["count"] if status == HTTPStatus.OK else None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        count = None
    if not isinstance(count, int):
        raise UpstreamFailed(
            f"The server at {upstream.address} does not count tokens as vLLM does: status {status}."
            " Use a policy server with POST /tokenize."
        )
    return count
