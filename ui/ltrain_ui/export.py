"""The pages of a run as a folder of files that any web server can publish.

The pages are those of `ltrain ui`, from the page of the run along its links: waves, groups, policy
versions and datasets. Links to what is not in the folder, such as lists, are removed.
"""

import asyncio
import re
from collections import deque
from collections.abc import Mapping
from hashlib import sha256
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from starlette.types import ASGIApp, Message

from ltrain_instrument.errors import LtrainError
from ltrain_transforms.errors import writing_output
from ltrain_transforms.reports import Kind, Reference
from ltrain_ui.addresses import address_of

LINK = re.compile(r' (href|src)="([^"]*)"')
"""A link in a page. Text of traces has no quotes there: the templates escape them."""
SERVED = re.compile(
    r'<header class="side">.*?</header>|<dialog.*?</dialog>|<form.*?</form>| data-live="[^"]*"',
    re.DOTALL,
)
"""The lists, the queries, the forms and what refreshes a page, which need the server."""
FOLLOWED = re.compile(r"/groups\?.*|/policies/[^?]+|/datasets/[^?]+|/static/.*")
"""Addresses whose pages are written, beside those of the run."""
OMITTED = re.compile(r"/waves/\d+/rules\?|/tasks/")
"""Pages of the run that are not written: what a recipe gives now, and what other pages have."""
MAX_NAME = 80
"""Characters of the name of a file, without its ending."""


def export_pages(app: ASGIApp, run: str, folder: Path) -> int:
    """Write the page of a run and the pages that it leads to; return the number of files.

    Args:
        app: the pages without sign-in, which raises an `LtrainError` in place of a page.

    Raises:
        LtrainError: when the run cannot be shown.
        Unwritable: when the folder cannot be written.
    """
    first = str(address_of(Reference(Kind.RUN, run)))
    bodies = asyncio.run(_read_pages(app, first))
    names = {address: file_name(address) for address in bodies} | {first: "index.html"}
    with writing_output("The export", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for address, body in bodies.items():
            text = _link_files(body, address, names) if _is_page(address) else body
            (folder / names[address]).write_text(text, encoding="utf-8")
    return len(bodies)


async def _read_pages(app: ASGIApp, first: str) -> dict[str, str]:
    """Return the bodies of all pages and files that `first` leads to, by address."""
    bodies, waiting, known = dict[str, str](), deque([first]), {first}
    while waiting:
        address = waiting.popleft()
        try:
            status, body = await _fetch(app, address)
        except LtrainError:
            if address == first:
                raise
            continue  # the page would have only this message
        if status != 200:
            continue
        bodies[address] = SERVED.sub("", body)
        if not _is_page(address):
            continue
        for _, link in LINK.findall(bodies[address]):
            found = urldefrag(urljoin(address, unescape(link))).url
            if found not in known and _is_followed(found, first):
                known.add(found)
                waiting.append(found)
    return bodies


def _is_page(address: str) -> bool:
    return not address.startswith("/static/")


def _is_followed(address: str, first: str) -> bool:
    if address.startswith(f"{first}/"):
        return OMITTED.search(address) is None
    return FOLLOWED.fullmatch(address) is not None


def file_name(address: str) -> str:
    """Return the name of the file for an address; two addresses have two names."""
    if not _is_page(address):
        return address.removeprefix("/static/")
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", address).strip("-")[:MAX_NAME]
    return f"{readable}-{sha256(address.encode()).hexdigest()[:8]}.html"


def _link_files(body: str, address: str, names: Mapping[str, str]) -> str:
    """Return a page whose links lead to files; a link to anything else is removed."""

    def link(match: re.Match[str]) -> str:
        attribute, value = match.groups()
        if value.startswith("#"):
            return match[0]
        target, fragment = urldefrag(urljoin(address, unescape(value)))
        name = names.get(target)
        if name is None:
            return ""
        return f' {attribute}="{name}{f"#{fragment}" if fragment else ""}"'

    return LINK.sub(link, body)


async def _fetch(app: ASGIApp, address: str) -> tuple[int, str]:
    """Return the status and the body of the response to a GET request."""
    parts, messages = urlsplit(address), list[Message]()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": unquote(parts.path),
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "headers": [],
        "server": ("export", 0),
    }
    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in messages)
    return int(messages[0]["status"]), body.decode()
