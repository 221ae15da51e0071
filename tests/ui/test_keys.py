"""Pages for other machines: keys of the store, names, other sites, and TLS."""

import re
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, expect
from tests.fork_server import ltrain_command
from tests.http_requests import Answer, ask
from tests.ui.conftest import make_home, running
from tests.up import start_up

from ltrain_collector.access import Keys, Role
from ltrain_ui.app import LIMITED
from ltrain_ui.sessions import LIFETIME

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class Served:
    """A store with keys, and pages of it for other machines."""

    port: int
    keys: Keys
    alice: str
    id: str
    """The id of Alice's key."""
    ingest: str
    log: Path

    def sign_in(self, key: str, page: str = "/", **headers: str) -> Answer:
        body = urlencode({"key": key, "page": page})
        return ask(self.port, "POST", "/session", body, {**FORM, **headers})

    def cookie(self, key: str) -> dict[str, str]:
        return {"Cookie": self.sign_in(key).headers["set-cookie"].partition(";")[0]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("keys")
    make_home(folder)
    keys = Keys(folder / ".ltrain" / "store")
    alice, entry = keys.make_key(Role.QUERY, "alice")
    ingest, _ = keys.make_key(Role.INGEST)
    up = start_up(folder / ".ltrain" / "store")
    options = ("--store", up.dsn, "--host", "0.0.0.0", "--allow-host", "traces.example")
    with running(folder, *options) as (link, _):
        port = urlsplit(link).port
        assert port is not None and "#" not in link
        yield Served(port, keys, alice, entry.id, ingest, folder / "ui.log")
    up.stop()


def test_a_key_opens_the_pages_and_the_page_that_was_wanted(served: Served) -> None:
    wanted = "/rollouts?run=demo&text=%22%3E%3Cb%3E"
    refused = ask(served.port, "GET", wanted)
    assert refused.status == 401 and 'name="key" type="password"' in refused.text
    assert f'value="{wanted.replace("&", "&amp;")}"' in refused.text
    answer = served.sign_in(served.alice, wanted)
    assert (answer.status, answer.headers["location"]) == (303, wanted)
    cookie, *flags = answer.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict", f"Max-Age={LIFETIME}", "Path=/"} == set(flags)
    page = ask(served.port, "GET", "/", headers={"Cookie": cookie})
    assert page.status == 200 and "demo" in page.text and served.alice not in page.text
    # the store has keys: only one of a person reads it
    csv = ask(served.port, "GET", "/sql.csv?query=SELECT+1+AS+one", headers={"Cookie": cookie})
    assert csv.text == '"one"\n1\n'


@pytest.mark.parametrize(
    "page", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\nb", "/[::x"]
)
def test_sign_in_leads_to_no_other_site(served: Served, page: str) -> None:
    location = served.sign_in(served.alice, page).headers["location"]
    assert location == "/" or (page == "/[::x" and location.startswith("/"))


def test_feedback_is_stored_under_the_name_of_the_key(served: Served) -> None:
    cookie = served.cookie(served.alice)
    listed = ask(served.port, "GET", "/rollouts?run=demo&mode=train&wave=0", headers=cookie).text
    rollout = re.findall(r'class="item" href="/rollouts/([0-9a-f]+)', listed)[0]
    fields = {"kind": "rollout", "execution": rollout, "name": "liked", "token": "t", "thumb": "1"}
    sent = {**cookie, **FORM}
    answer = ask(served.port, "POST", "/feedback", urlencode(fields), sent)
    assert answer.status == 303, answer.text
    page = ask(served.port, "GET", f"/rollouts/{rollout}", headers=cookie).text
    assert "<b>liked 1</b>" in page and f"by alice ({served.id})" in page


def test_a_key_that_cannot_read_does_not_sign_in(served: Served) -> None:
    for key in (served.ingest, ""):  # the module sends fewer than five wrong keys
        answer = served.sign_in(key)
        assert answer.status == 403 and "its role cannot read" in answer.text
        assert "set-cookie" not in answer.headers and (not key or key not in answer.text)


def test_a_revoked_key_ends_its_sessions(served: Served) -> None:
    key, entry = served.keys.make_key(Role.QUERY, "bob")
    cookie = served.cookie(key)
    assert ask(served.port, "GET", "/rollouts", headers=cookie).status == 200
    served.keys.revoke_key(entry.id)
    for method, path in (("GET", "/rollouts"), ("GET", "/sql.csv?query=SELECT+1")):
        answer = ask(served.port, method, path, headers=cookie)
        assert answer.status == 401 and 'name="key"' in answer.text
    assert ask(served.port, "POST", "/feedback", "", {**cookie, **FORM}).status == 401
    assert served.sign_in(key).status == 403


def test_a_revoked_key_ends_its_stream_of_spans(served: Served) -> None:
    key, entry = served.keys.make_key(Role.QUERY, "carol")
    connection = HTTPConnection("127.0.0.1", served.port, timeout=120)
    connection.request("GET", "/live/events", headers=served.cookie(key))
    stream = connection.getresponse()
    assert stream.status == 200 and stream.readline().startswith((b"id: ", b"data: "))
    served.keys.revoke_key(entry.id)
    stream.read()  # until the server ends it
    connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "traces.example"}, 401),
        ({"Host": "traces.example:8484"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Host": "traces.example.evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
    ids=str,
)
def test_names_and_other_sites(served: Served, headers: dict[str, str], status: int) -> None:
    assert ask(served.port, "GET", "/", headers=headers).status == status
    if status == 403:
        cookie = served.cookie(served.alice)
        for path in ("/session", "/feedback"):
            answer = ask(served.port, "POST", path, "key=x", {**cookie, **FORM, **headers})
            assert answer.status == 403 and "access-control-allow-origin" not in answer.headers


@pytest.mark.nightly
def test_a_person_signs_in_on_a_phone(served: Served, browser: Browser) -> None:
    context = browser.new_context(
        base_url=f"http://127.0.0.1:{served.port}", viewport={"width": 375, "height": 800}
    )
    page = context.new_page()
    page.goto("/runs/demo")
    page.get_by_label("key of the store").fill("lt_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("This key is unknown")
    page.get_by_label("key of the store").fill(served.alice)
    page.get_by_label("key of the store").press("Enter")
    expect(page.get_by_role("heading", name="run demo")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    context.close()


def test_no_key_is_in_the_log(served: Served) -> None:
    served.sign_in(served.alice)
    log = served.log.read_text()
    assert "clear text" in log and served.alice not in log and "lt_" not in log


def test_without_keys_only_this_machine_is_served(tmp_path: Path) -> None:
    for store, fix in {
        f"chdb://{tmp_path}/store": f"`ltrain key make query --dir {tmp_path}/store`",
        "http://10.255.255.1:8123": "Run it on the machine of the store",
    }.items():
        command = [ltrain_command(), "ui", "--port", "0", "--host", "0.0.0.0"]
        done = subprocess.run(
            [*command, "--store", store], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 1 and done.stdout == ""
        assert "without keys is served only on this machine, not on '0.0.0.0'" in done.stderr
        assert fix in done.stderr


def test_tls_and_too_many_wrong_keys(tmp_path: Path) -> None:
    certificate, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(private), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    home = make_home(tmp_path)
    key, _ = Keys(tmp_path / ".ltrain" / "store").make_key(Role.ADMIN)
    files = ("--tls-cert", str(certificate), "--tls-key", str(private))
    with running(tmp_path, "--store", home.store, "--host", "0.0.0.0", *files) as (link, _):
        port, context = urlsplit(link).port, ssl.create_default_context(cafile=certificate)

        def sign_in(secret: str) -> tuple[int, str]:
            connection = HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
            connection.request("POST", "/session", urlencode({"key": secret}), FORM)
            answer = connection.getresponse()
            text = answer.read().decode() + (answer.headers["set-cookie"] or "")
            connection.close()
            return answer.status, text

        status, text = sign_in(key)
        assert status == 303 and {"Secure", "HttpOnly", "SameSite=strict"} <= set(text.split("; "))
        assert [sign_in(f"lt_{number}")[0] for number in range(6)] == [403] * 5 + [429]
        status, text = sign_in(key)
        assert status == 429 and LIMITED in text and "ltrain-ui-" not in text
    assert "clear text" not in (tmp_path / "ui.log").read_text()
