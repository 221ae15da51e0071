"""What the gateway says instead of an answer, in the form that OpenAI's clients read."""

from http import HTTPStatus

import orjson
from starlette.types import Send

JSON_HEADERS = [(b"content-type", b"application/json")]


class Refused(Exception):
    """A request that gets no answer: an HTTP status and a sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence

    @property
    def body(self) -> bytes:
        error = {"message": self.sentence, "type": _type(self.status), "code": self.status.value}
        return orjson.dumps({"error": {**error, "param": None}})

    async def send(self, send: Send) -> None:
        """Send it as the whole response."""
        await send_json(send, self.status, self.body)


async def send_json(send: Send, status: int, body: bytes) -> None:
    """Send a whole response."""
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": status, "headers": [*JSON_HEADERS, length]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _type(status: HTTPStatus) -> str:
    return status.phrase.lower().replace(" ", "_") + "_error"
