"""Pages that change while they are open: a run that goes on, and spans as they arrive."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.otlp import insert_otlp
from tests.transforms.conftest import RECIPE, Scene
from tests.ui.conftest import running
from tests.up import Up, start_up

from ltrain_collector.store import Store
from ltrain_instrument.files import hold_file
from ltrain_transforms.run_events import JOURNAL, AnyEvent, Finished, Opened, Started, Trained

BURST = 10_000


@dataclass
class Live:
    """A collector, and `ltrain ui` in front of it."""

    folder: Path
    up: Up
    context: BrowserContext

    @property
    def run(self) -> Path:
        return self.folder / ".ltrain" / "runs" / "demo"

    def attempt(self, task: str, wave: int = 0, calls: int = 1) -> int:
        """Insert the spans of a rollout; return their number."""
        scene = Scene()
        rollout = scene.attempt(task, 0, wave=wave)
        rollout.dispatch()
        for number in range(calls):
            rollout.llm(f"call {number}", text="answer")
        rollout.close()
        with Store.open(self.up.owned) as store:
            return insert_otlp(store, scene.request()).count

    def add(self, event: AnyEvent) -> None:
        """Append an event to the journal of the run."""
        with (self.run / JOURNAL).open("a") as file:
            file.write(f"{event.model_dump_json()}\n")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    (folder / "ltrain.toml").write_text(RECIPE)
    up = start_up(folder / ".ltrain" / "store")
    with running(folder, "--store", up.dsn) as (link, _):
        context = browser.new_context(base_url=link.partition("#")[0])
        context.set_default_timeout(120_000)  # milliseconds: a busy machine is slow
        page = context.new_page()
        page.goto(link)
        expect(page.get_by_role("heading", name="Runs, policies")).to_be_visible()
        page.close()
        found = Live(folder, up, context)
        found.run.mkdir(parents=True)
        found.add(Started(run="demo", recipe="r", policies={"sql": 0}))
        found.add(Opened(updates=2))
        found.attempt("t1")
        yield found
        context.close()
    found.up.stop()  # a test may have replaced the first one


@pytest.fixture
def page(live: Live) -> Iterator[Page]:
    page, faults = live.context.new_page(), list[str]()
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    page.close()
    assert faults == []


@pytest.mark.nightly
def test_the_page_of_a_run_follows_it_and_keeps_focus_and_scroll(page: Page, live: Live) -> None:
    held = hold_file(live.run)
    page.goto("/")
    expect(page.get_by_role("row", name="demo").first).to_contain_text("running, 0 of 2 updates")
    page.goto("/runs/demo")
    expect(page.get_by_text("running, 0 of 2 updates")).to_be_visible()
    link = page.get_by_role("link", name="train 0")
    link.focus()
    page.evaluate("document.querySelector('.scroll').scrollLeft = 40; scrollTo(0, 60)")
    before = page.evaluate("[scrollX, scrollY]")
    live.add(Trained(policy="sql", wave=0, changed=False))
    expect(page.get_by_text("running, 1 of 2 updates")).to_be_visible()
    live.attempt("t2", wave=1)
    expect(page.get_by_role("link", name="train 1")).to_be_visible()
    expect(link).to_be_focused()
    assert page.evaluate("[scrollX, scrollY]") == before
    waves = page.locator("h2:has-text('Waves') + .scroll table")
    for _ in range(2):
        waves.get_by_role("button", name="wave").click()
    live.add(Trained(policy="sql", wave=1, changed=False))
    live.add(Finished())
    os.close(held)
    expect(page.get_by_text("finished, 2 of 2 updates")).to_be_visible()
    expect(waves.locator("th").first).to_have_attribute("aria-sort", "descending")
    expect(waves.locator("tbody td:first-child")).to_have_text(["train 1", "train 0"])
    expect(waves.get_by_role("button", name="wave")).to_be_visible()
    # it does not change any more, so the page asks no longer
    expect(page.locator("main[data-live]")).to_have_count(0)


def test_a_slow_page_is_refreshed_less_often_but_within_half_a_minute(page: Page) -> None:
    page.goto("/")
    pauses = page.evaluate(
        "import('/static/ui.js').then((ui) => [10, 200, 2000, 60000].map(ui.pauseAfter))"
    )
    assert pauses == [3000, 8000, 30_000, 30_000]


def test_a_run_that_has_not_changed_is_not_rendered(page: Page, live: Live) -> None:
    first = page.request.get("/runs/demo")
    tag = {"If-None-Match": first.headers["etag"]}
    assert page.request.get("/runs/demo", headers=tag).status == 304
    live.attempt("t3", wave=1)
    assert page.request.get("/runs/demo", headers=tag).status == 200
    assert page.request.get("/runs/dmeo", headers=tag).status == 404


def keys(page: Page) -> list[str]:
    rows = page.locator("tbody tr")
    return list(map(str, rows.evaluate_all("rows => rows.map(row => row.dataset.key)")))


def test_spans_arrive_once_each_also_after_a_pause(page: Page, live: Live) -> None:
    page.goto("/live?service=&run=demo")
    expect(page.get_by_text("Following the store.")).to_be_visible()
    before = len(keys(page)) + live.attempt("t4")
    expect(page.locator("tbody tr")).to_have_count(before)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Paused.")).to_be_visible()
    more = live.attempt("t5", calls=3)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("tbody tr")).to_have_count(before + more)
    assert len(set(keys(page))) == before + more
    page.get_by_role("row", name="call 2").first.get_by_role("link").click()
    expect(page.locator("p.id")).to_contain_text("rollout ")


def test_a_filter_selects_spans(page: Page, live: Live) -> None:
    page.goto("/live")
    page.get_by_role("textbox", name="run").fill("another")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("Following the store: no span yet.")).to_be_visible()
    assert "run=another" in page.url
    live.attempt("t6")
    page.wait_for_timeout(2500)  # milliseconds: longer than one read
    assert keys(page) == []


def test_a_burst_is_cut_with_a_sentence(page: Page, live: Live) -> None:
    page.goto("/live")
    expect(page.get_by_text("Following the store.")).to_be_visible()
    spans = live.attempt("t7", calls=BURST // 2)
    sentence = page.get_by_text("spans arrived at once and are not shown")
    expect(sentence).to_be_visible()
    count = int(re.sub(r"\D", "", sentence.inner_text()))
    assert spans >= BURST and count == spans - 200
    assert len(keys(page)) == 200


def test_a_store_that_is_away_is_reported_and_followed_again(
    page: Page, live: Live, tmp_path: Path
) -> None:
    page.goto("/live")
    expect(page.get_by_text("Following the store")).to_be_visible()
    port = live.up.sql
    live.up.stop()
    expect(page.get_by_text("The store is not read")).to_be_visible()
    response = page.request.get("/")
    assert response.status == 200, response.text()
    assert " of 2 updates" in response.text()
    live.up = start_up(live.folder / ".ltrain" / "store", sql=port)
    expect(page.get_by_text("Following the store")).to_be_visible()
    live.attempt("t8")
    expect(page.get_by_role("row", name="call 0").first).to_be_visible()


def test_ctrl_c_ends_open_streams(live: Live, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / ".ltrain").mkdir()
    with running(tmp_path, "--store", live.up.dsn) as (link, process):
        context = browser.new_context()
        page = context.new_page()
        page.goto(link)
        expect(page.get_by_role("heading", name="Runs, policies")).to_be_visible()
        page.goto(link.partition("#")[0] + "live")
        expect(page.get_by_text("Following the store")).to_be_visible()
        process.terminate()
        process.wait(60)
        log = (tmp_path / "ui.log").read_text()
        assert "Cancel" not in log and "Traceback" not in log
        expect(page.get_by_text("does not answer")).to_be_visible()
        context.close()


def test_rollouts_that_run_now_are_listed_and_rules_lead_to_the_newest_wave(page: Page) -> None:
    page.goto("/live")
    running = page.get_by_role("region", name="Rollouts that run now")
    expect(running.get_by_role("heading")).to_have_text("Rollouts that run now")
    page.get_by_role("link", name="Rules", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("rules on train 0 of run demo")
