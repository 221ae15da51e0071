"""Who may open the pages: the code of the link, the cookie, and requests of other sites."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.http_requests import ask
from tests.ui.conftest import Home, running

from ltrain_instrument.addresses import UI, find_address
from ltrain_ui.sessions import LIFETIME, MAX_CLIENTS, MAX_FAILURES, Sessions, Visitor
from ltrain_ui.sign_in import CODE_LIFETIME, CodeSignIn


@pytest.fixture(scope="module")
def link(home: Home) -> Iterator[str]:
    with running(home.folder, "--store", home.store) as (link, _):
        yield link


def parts(link: str) -> tuple[int, str]:
    """Return the port and the code of a link."""
    address = urlsplit(link)
    assert address.port is not None
    return address.port, address.fragment


def test_a_code_works_again_and_the_cookie_opens_the_pages(home: Home) -> None:
    with running(home.folder, "--store", home.store) as (link, _):
        port, code = parts(link)
        assert ask(port, "GET", "/").status == 401
        answer = ask(port, "POST", "/session", code, {"Origin": f"http://127.0.0.1:{port}"})
        assert answer.status == 200
        cookie, *attributes = answer.headers["set-cookie"].split("; ")
        assert cookie.startswith(f"ltrain-ui-{port}=")
        assert {"HttpOnly", "SameSite=strict", f"Max-Age={LIFETIME}"} <= set(attributes)
        assert ask(port, "POST", "/session", code).status == 200
        answer = ask(port, "POST", "/session", f"{code}x")
        assert answer.status == 403
        assert "The terminal of `ltrain ui` shows a new one" in answer.text
        assert "`ltrain ui --port 0` prints a link" in answer.text
        answer = ask(port, "GET", "/", headers={"Cookie": cookie})
        assert answer.status == 200 and "demo" in answer.text
        assert answer.headers["cache-control"] == "no-store"
        assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_the_pages_are_announced_in_their_home(home: Home, tmp_path: Path) -> None:
    (tmp_path / ".ltrain").mkdir()
    with running(tmp_path, "--store", home.store) as (link, _):
        assert link.startswith(f"{find_address(tmp_path / '.ltrain', UI)}/#")
    assert find_address(tmp_path / ".ltrain", UI) == ""


def test_without_a_session_a_browser_gets_the_sign_in_page_only(link: str) -> None:
    port, _ = parts(link)
    for path in ("/", "/rollouts", "/runs/demo", "/policies/sql", "/find?id=demo", "/nothing"):
        answer = ask(port, "GET", path)
        assert answer.status == 401 and "Open the link" in answer.text
        assert "demo" not in answer.text
    assert ask(port, "GET", "/static/ui.css").status == 200
    for path in ("/static/app.py", "/static/../app.py", "/static/%2e%2e%2fapp.py"):
        assert ask(port, "GET", path).status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_requests_of_other_sites_are_refused(link: str, headers: dict[str, str]) -> None:
    port, code = parts(link)
    assert ask(port, "POST", "/session", code, headers).status == 403
    assert ask(port, "GET", "/", headers=headers).status == 403
    assert ask(port, "GET", "/static/ui.js", headers=headers).status == 403


def test_wrong_codes_are_limited(home: Home) -> None:
    with running(home.folder, "--store", home.store) as (link, _):
        port, code = parts(link)
        wrong = [ask(port, "POST", "/session", f"wrong{n}" * 100).status for n in range(6)]
        assert wrong == [403] * 5 + [429]
        assert ask(port, "POST", "/session", code).status == 429


def test_sessions_and_limits_end_with_time() -> None:
    now = [0.0]
    sessions, alice = Sessions(lambda: now[0]), Visitor("alice", "secret-key")
    token = sessions.begin(alice)
    assert sessions.visitor(token) == alice and "secret-key" not in repr(alice)
    assert sessions.visitor(None) is None and sessions.visitor("guess") is None
    for _ in range(MAX_FAILURES):
        assert not sessions.is_limited("10.0.0.1")
        sessions.add_failure("10.0.0.1")
    assert sessions.is_limited("10.0.0.1") and not sessions.is_limited("10.0.0.2")
    for number in range(MAX_CLIENTS + 1):  # the oldest is forgotten, so memory is bounded
        sessions.add_failure(f"host-{number}")
    assert not sessions.is_limited("10.0.0.1")
    for _ in range(MAX_FAILURES):
        sessions.add_failure("10.0.0.1")
    now[0] = 61.0
    assert not sessions.is_limited("10.0.0.1")
    now[0] = LIFETIME + 1.0
    assert sessions.visitor(token) is None
    token = sessions.begin(alice)
    sessions.end(token)
    assert sessions.visitor(token) is None


def test_a_code_works_for_an_hour_and_is_then_another_one() -> None:
    announced, now = list[int](), [0.0]
    way = CodeSignIn(lambda: announced.append(1), lambda: now[0])
    code = way.code
    assert way.admit("") is None and way.admit("wrong") is None
    for now[0] in (1.0, CODE_LIFETIME - 1):
        assert way.admit(code) is not None
    now[0] = CODE_LIFETIME + 1
    assert announced == [] and way.admit(code) is None
    assert way.code != code and announced == [1]
    assert way.admit(code) is None and way.admit(way.code) is not None
