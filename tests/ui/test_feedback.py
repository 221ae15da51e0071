"""Feedback by hand: in a real browser, as plain requests, and as the reward of a dataset."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import polars as pl
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.http_requests import Answer, ask
from tests.ui.conftest import EVIL, Home, make_home, running

from ltrain_collector.feedback import record_reward
from ltrain_collector.store import Store
from ltrain_instrument.machine import visible
from ltrain_transforms.datasets import build, dataset_folder
from ltrain_transforms.recipe import Recipe

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose store gets feedback."""
    return make_home(tmp_path_factory.mktemp("feedback"))


@pytest.fixture(scope="module")
def link(own: Home) -> Iterator[str]:
    with running(own.folder, "--store", own.store) as (link, _):
        yield link


@pytest.fixture(scope="module")
def signed_in(link: str, browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=link.partition("#")[0])
    context.set_default_timeout(120_000)  # milliseconds: a busy machine is slow
    page = context.new_page()
    page.goto(link)
    expect(page.get_by_role("link", name="demo")).to_be_visible()
    page.close()
    yield context
    context.close()


@pytest.fixture
def page(signed_in: BrowserContext) -> Iterator[Page]:
    """A page whose errors fail the test."""
    page, faults = signed_in.new_page(), list[str]()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text))
    page.on("dialog", lambda dialog: faults.append(dialog.message))
    yield page
    page.close()
    assert faults == []


def press(page: Page, key: str) -> None:
    page.wait_for_load_state()
    page.keyboard.press(key)


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.nightly), 375])
def test_a_list_by_keys(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    name = f"helpful-{width}"
    page.goto(f"/rollouts?run=demo&mode=train&wave=0&unrated={name}")
    expect(page.locator("a.item")).to_have_count(4)
    press(page, "j")
    press(page, "Enter")
    titles, entries = [], page.locator("section.feedback .entries b", has_text=name)
    for key, value in (("+", 1), ("-", 0)):
        expect(page.get_by_label("name", exact=True).first).to_have_value(name)
        titles.append(page.locator("p.id").text_content() or "")
        press(page, key)
        expect(entries).to_have_text([f"{name} {value}"])
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        press(page, "j")  # it goes on although the filter does not select this one any more
        expect(page.locator("p.id")).not_to_have_text(titles[-1])
    assert len(set(titles)) == 2
    press(page, "u")
    expect(page.locator("a.item")).to_have_count(2)
    expect(page.get_by_label("unrated")).to_have_value(name)


def test_a_queue_goes_on_after_each_rating(page: Page) -> None:
    page.goto("/feedback?unrated=tone&run=demo&mode=train")
    expect(page.locator(".tiles")).to_contain_text("12")
    press(page, "s")
    title, section = page.locator("p.id"), page.locator("section.feedback").first
    expect(section).to_contain_text("tone: 0 rated by you, 12 left")
    first = title.text_content() or ""
    press(page, "4")
    expect(section).to_contain_text("tone: 1 rated by you, 11 left")
    expect(title).not_to_have_text(first)
    second = title.text_content() or ""
    press(page, "s")
    expect(title).not_to_have_text(second)
    expect(section).to_contain_text("tone: 1 rated by you, 11 left")
    press(page, "-")
    expect(section).to_contain_text("tone: 2 rated by you, 10 left")
    press(page, "z")
    expect(section).to_contain_text("tone: 1 rated by you, 11 left")
    expect(section.locator(".entries b").first).to_have_text("tone withdrawn")
    press(page, "n")
    expect(section.get_by_label("note")).to_be_visible()
    query = "SELECT value FROM otel.evaluations WHERE name = 'tone' AND value >= 0 ORDER BY value"
    values = page.request.get(f"/sql.csv?{urlencode({'query': query})}").text()
    assert values.split() == ['"value"', "0", "0.75"]


def test_the_last_rating_of_a_queue_leads_to_the_overview(page: Page) -> None:
    page.goto("/feedback?unrated=last&run=demo&mode=val")
    press(page, "s")
    for left in (2, 1):
        expect(page.locator("section.feedback").first).to_contain_text(f"{left} left")
        press(page, "+")
    expect(page.get_by_role("heading", level=1)).to_have_text("Feedback")
    page.goto("/feedback?unrated=last&run=demo&mode=val")
    expect(page.get_by_text("Everything that this filter selects is rated.")).to_be_visible()


def test_a_value_a_note_and_a_withdrawal(page: Page) -> None:
    page.goto("/rollouts?run=demo&mode=train&wave=1")
    page.locator("a.item").first.click()
    section = page.locator("section.feedback").first
    section.get_by_text("Value or note").click()
    section.get_by_label("name").fill("score")
    section.get_by_label("value").fill("0,25")
    section.get_by_label("note").fill(EVIL)
    section.get_by_label("note").press("Enter")
    expect(section.locator(".entries b", has_text="score")).to_have_text(["score 0.25"])
    expect(section.get_by_text(visible(EVIL), exact=False)).to_be_visible()
    page.reload()
    expect(section.locator(".entries b", has_text="score")).to_have_text(["score 0.25"])
    section.get_by_text("Value or note").click()
    section.get_by_label("name").fill("score")
    section.get_by_label("note").fill("look again")
    section.get_by_role("button", name="Save").click()
    expect(section.locator(".entries b", has_text="score")).to_have_text(["score", "score 0.25"])
    section.get_by_text("Value or note").click()
    section.get_by_label("name").fill("score")
    section.get_by_label("value").fill("1")
    section.get_by_role("button", name="Save").click()
    expect(section.locator(".entries b", has_text="score")).to_have_text(
        ["score 1", "score", "score 0.25"]
    )
    section.get_by_role("button", name="Withdraw score").click()
    expect(section.locator(".entries b", has_text="score").first).to_have_text("score withdrawn")
    expect(section.get_by_role("button", name="Withdraw score")).to_have_count(0)
    page.goto("/rollouts?run=demo&mode=train&wave=1")
    assert "score" not in page.locator("tbody tr").first.inner_text()


def test_a_call_has_feedback_of_its_own(page: Page) -> None:
    page.goto("/rollouts?run=demo&mode=train&wave=2")
    page.locator("a.item").first.click()
    page.locator("#a1c1 > summary").click()
    section = page.get_by_role("region", name="Feedback on call #1", exact=True)
    section.get_by_text("Value or note").click()
    section.get_by_label("name").fill("step")
    section.get_by_label("value").fill("0")
    section.get_by_role("button", name="Save").click()
    whole = page.locator("section.feedback").first
    expect(whole.locator(".entries b", has_text="step")).to_have_count(0)
    expect(section.locator(".entries b")).to_have_text(["step 0"])  # the address names the call
    section.get_by_role("button", name="Good").click()
    expect(section.locator(".entries b")).to_have_text(["reward 1", "step 0"])


def test_forms_need_no_script(link: str, browser: Browser, signed_in: BrowserContext) -> None:
    state = signed_in.storage_state()
    context = browser.new_context(
        base_url=link.partition("#")[0], java_script_enabled=False, storage_state=state
    )
    page = context.new_page()
    page.goto("/rollouts?run=demo&mode=val")
    page.get_by_role("link", name=re.compile("^[0-9a-f]{12}$")).last.click()
    page.get_by_role("button", name="Good").first.click()
    ratings = page.locator("section.feedback .entries b", has_text="reward")
    expect(ratings).to_have_text(["reward 1"])
    context.close()


@pytest.fixture(scope="module")
def requests(own: Home, link: str, signed_in: BrowserContext) -> dict[str, Any]:
    """The port of the server, and the cookie of a session."""
    [cookie] = signed_in.cookies()
    return {"port": urlsplit(link).port, "cookie": f"{cookie['name']}={cookie['value']}"}


def get(requests: dict[str, Any], path: str) -> str:
    return ask(requests["port"], "GET", path, headers={"Cookie": requests["cookie"]}).text


def post(requests: dict[str, Any], fields: dict[str, str], **headers: str) -> Answer:
    own = {"Cookie": requests["cookie"], **FORM, **headers}
    return ask(requests["port"], "POST", "/feedback", urlencode(fields), own, timeout=120)


def opened(requests: dict[str, Any], number: int) -> dict[str, str]:
    """Return the hidden fields of the form of a rollout of wave 2."""
    page = get(requests, "/rollouts?run=demo&mode=train&wave=2")
    rollout = re.findall(r'class="item" href="/rollouts/([0-9a-f]+)', page)[number]
    token = re.search(r'name="token" value="([^"]+)"', get(requests, f"/rollouts/{rollout}"))
    assert token is not None
    return {"kind": "rollout", "execution": rollout, "token": token[1], "list": "run=demo"}


def stored(requests: dict[str, Any], rollout: str) -> list[str]:
    page = get(requests, f"/rollouts/{rollout}")
    return re.findall(r"<b>(.*?)</b>", page.partition('class="entries"')[2].partition("</ul>")[0])


def test_a_form_that_is_sent_twice_is_stored_once(requests: dict[str, Any]) -> None:
    fields = opened(requests, 1)
    clicks = [{**fields, "name": "click", "thumb": "1"}] * 4
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda click: post(requests, click), clicks))
    assert {answer.status for answer in answers} == {303}
    assert answers[0].headers["location"] == f"/rollouts/{fields['execution']}?run=demo"
    assert stored(requests, fields["execution"]) == ["click 1"]
    # an old page, opened again by "back": what was changed on it counts
    for thumb in ("0", "1"):
        assert post(requests, {**fields, "name": "click", "thumb": thumb}).status == 303
    assert stored(requests, fields["execution"]) == ["click 1", "click 0", "click 1"]


def test_a_form_that_is_no_feedback_is_explained(requests: dict[str, Any]) -> None:
    fields = {**opened(requests, 2), "name": "x"}
    for wrong, sentence in {
        "number=": "There is nothing to save",
        "number=much": "value: Input should be a valid number",
        "number=nan": "reward nan does not count. Pass a number from",
        "number=1e101": "reward 1e+101 does not count. Pass a number from",
        "number=" + "1" * 50: "number: String should have at most 40",
        "thumb=2": "thumb: Input should be",
        "name=&thumb=1": "name: String should have at least 1 character",
        "name=" + "x" * 501 + "&thumb=1": "name: String should have at most 500",
        "note=" + "x" * 10_001: "comment: String should have at most",
        "note=" + "x" * 70_000: "more than 64 KiB",
        "kind=run&thumb=1": "kind: Input should be",
        "call=zz&trace=yy&thumb=1": "not saved",
        "anchor=%22onload&thumb=1": "anchor: String should match",
        "list=wave%3Dtwo&thumb=1": "is a number in an address",
        "more=1&thumb=1": "more: Extra inputs",
        "token=&thumb=1": "token: String should have at least 1",
    }.items():
        body = dict(fields) | dict(part.split("=", 1) for part in wrong.split("&"))
        encoded = urlencode(
            {name: text.replace("%3D", "=").replace("%22", '"') for name, text in body.items()}
        )
        headers = {"Cookie": requests["cookie"], **FORM}
        answer = ask(requests["port"], "POST", "/feedback", encoded, headers)
        assert (answer.status, sentence in answer.text) == (400, True), (wrong, answer.text)
    answer = ask(requests["port"], "POST", "/feedback", b"\xff=1", headers)
    assert answer.status == 400
    assert stored(requests, fields["execution"]) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
        {"Cookie": "ltrain-ui-1=x"},
    ],
    ids=str,
)
def test_another_site_gives_no_feedback(requests: dict[str, Any], headers: dict[str, str]) -> None:
    fields = {**opened(requests, 3), "name": "x", "thumb": "1"}
    assert post(requests, fields, **headers).status in (401, 403)
    assert ask(requests["port"], "GET", "/feedback", headers=headers | FORM).status in (401, 403)
    assert stored(requests, fields["execution"]) == []


PERSON = """
source = { run = "demo" }
policy = [{ name = "sql", agents = ["write"] }]

[[reward]]
name = "liked"
evaluation = "liked"
from = "person"
"""


def test_a_recipe_trains_on_it(tmp_path: Path) -> None:
    made = make_home(tmp_path)
    file = tmp_path / "person.toml"
    file.write_text(PERSON)
    with running(tmp_path, "--store", made.store) as (link, _):
        port, code = urlsplit(link).port, urlsplit(link).fragment
        cookie = ask(port or 0, "POST", "/session", code).headers["set-cookie"].partition(";")[0]
        requests = {"port": port, "cookie": cookie}
        page = get(requests, "/rollouts?run=demo&mode=train&wave=0&task=t1")
        liked, other = re.findall(r'class="item" href="/rollouts/([0-9a-f]+)', page)
        for rollout, thumb in ((liked, "0"), (other, "0"), (liked, "1")):
            fields = {"kind": "rollout", "execution": rollout, "name": "liked", "token": thumb}
            assert post(requests, {**fields, "thumb": thumb}).status == 303
    with Store.open(made.store) as store:
        rows = store.query(
            "SELECT rollout, value, source FROM otel.evaluations WHERE name = 'liked' "
            "ORDER BY judged"
        ).rows()
        assert rows == [
            (liked, 0.0, "person"),
            (other, 0.0, "person"),
            (liked, 1.0, "person"),
        ]
        out = dataset_folder(tmp_path / ".ltrain", "demo", "train", 7)
        built = build(store, Recipe.load(file), out, wave=0)
        rewards = built.table("rewards").select("execution_id", "rule", "source", "value")
        assert sorted(rewards.rows()) == sorted(
            [(f"{liked}.1", "liked", "person", 1.0), (f"{other}.1", "liked", "person", 0.0)]
        )
        samples = built.table("samples")
        means = dict(samples.select("execution_id", pl.col("advantages").list.max()).rows())
        assert means[f"{liked}.1"] > 0 > means[f"{other}.1"]
    record_reward(f"rollout:{liked}", None, "liked", None, made.store, False, withdraw=True)
    with Store.open(made.store) as store:
        again = build(store, Recipe.load(file), out.with_name("again"), wave=0)
        assert again.table("rewards")["execution_id"].to_list() == [f"{other}.1"]
        reasons = again.table("drops").filter(pl.col("stage") == "rewards")["reason"].to_list()
        assert (
            sorted(reasons)[:3] == ["repeated", "repeated", "withdrawn"] or "withdrawn" in reasons
        )
