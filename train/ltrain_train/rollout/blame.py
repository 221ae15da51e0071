"""Whose failure an exception in the agent is: its own, or that of the endpoint it was given."""

from collections.abc import Iterator

_SERVER_ERROR = 500


def is_ours(error: BaseException, base_url: str) -> bool:
    """Tell whether a request to `base_url` found no server there, or one that failed (5xx).

    It reads what the exceptions of the OpenAI SDK and of httpx carry. A time limit that the agent
    sets itself is the agent's.
    """
    return any(_request_failed(link, base_url) for link in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _request_failed(error: BaseException, base_url: str) -> bool:
    try:
        url = str(getattr(getattr(error, "request", None), "url", ""))
        status = getattr(getattr(error, "response", None), "status_code", None)
    except RuntimeError:  # httpx: an exception that knows no request says so by raising
        return False
    if not url.startswith(base_url) or "Timeout" in type(error).__name__:
        return False
    return status >= _SERVER_ERROR if isinstance(status, int) else "Connect" in str(type(error))
