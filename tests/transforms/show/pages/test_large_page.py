"""The file of a large tree: rows and bodies are data in it, and a browser needs no server."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.transforms.show.pages.test_page import EVIL
from tests.transforms.show.pages.test_page import Page as Parsed
from tests.transforms.show.test_tree import call, of
from tests.ui.conftest import browser

from ltrain_instrument.machine import visible
from ltrain_transforms.show import RolloutTree, render_page, write_page

__all__ = ["browser"]
CALLS = 2_000
MARKS = "\u202e\x07\u2028"


def large() -> RolloutTree:
    """Return a tree whose agent has its last call first: depth first is not the order of `seq`."""
    talk = '[{"role":"user","parts":[{"type":"text","content":"%s"}]}]'
    steps = [call("root", None, 0), call("late", "root", CALLS - 1), call("early", None, 1)]
    for seq in range(2, CALLS - 1):
        texts = {"input": talk % f"asks {(seq + 1) // 2}", "output": talk % f"says {seq}"}
        steps.append(call(f"c{seq}", "early", seq, kind="llm", **texts))
    steps[901] |= {"name": f"{EVIL}{MARKS}", "error_type": EVIL, "status": "error"}
    steps[901] |= {"kind": "tool", "input": None, "output": None, "result": EVIL + "y" * 5_000_000}
    return of(*steps)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "page.html"
    write_page(large(), path)
    return path


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    """The opened file; errors and requests fail the test."""
    context, faults = browser.new_context(), list[str]()
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text))
    page.on("dialog", lambda dialog: faults.append(dialog.message))
    page.on("request", lambda request: faults.append(request.url))
    page.goto(file.as_uri())
    yield page
    context.close()
    assert [fault for fault in faults if not fault.startswith(file.as_uri())] == []


def test_the_file_holds_everything_as_inert_data(file: Path) -> None:
    text = file.read_text()
    parsed = Parsed(text)
    assert parsed.open == []
    scripts = [attributes for tag, attributes in parsed.tags if tag == "script"]
    assert {attributes.get("type") for attributes in scripts} == {"application/json", None}
    assert [attributes for attributes in scripts if "type" not in attributes] == [{}]
    assert text.count("c1500") and "says 1500" in text
    assert EVIL not in text and not re.search("[\u202e\x07\u2028]", text)
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"img", "link", "iframe", "object", "embed", "base"}
    assert len([one for one in parsed.tags if one[1].get("class") == "row"]) == 50
    assert len(text) < 6_000_000


def test_every_call_of_a_file_is_reached(page: Page) -> None:
    second = page.locator(".row[aria-posinset='2']")
    expect(second).to_contain_text(f"#{CALLS - 1}")
    page.locator(".call > summary").first.focus()
    page.keyboard.press("End")
    last = page.locator(f".row[aria-posinset='{CALLS}']")
    expect(last.locator("summary").first).to_be_focused()
    panel = page.get_by_role("region", name="The chosen call of attempt 1")
    expect(panel.locator(".message.answer")).to_contain_text(f"says {CALLS - 2}")
    panel.get_by_role("link", name=f"#{CALLS - 3}").click()
    expect(panel.locator(".message.answer")).to_contain_text(f"says {CALLS - 3}")
    page.get_by_label("Call #").fill(str(CALLS - 1))
    page.keyboard.press("Enter")
    expect(second.locator("summary[aria-current]")).to_have_count(1)
    expect(panel.get_by_role("heading").first).to_contain_text(f"#{CALLS - 1}")
    page.set_viewport_size({"width": 800, "height": 800})  # the call opens in its place
    expect(second.locator(".inside")).to_be_visible()
    expect(panel).to_be_hidden()
    assert page.evaluate("document.querySelectorAll('*').length") < 3000


def test_a_link_into_a_file_and_hostile_text(page: Page, file: Path) -> None:
    page.goto("about:blank")
    page.goto(f"{file.as_uri()}#a1c900")
    hostile = page.get_by_role("region", name="The chosen call of attempt 1")
    expect(hostile.locator(".inside")).to_be_visible()
    expect(hostile.locator(".bad").nth(0)).to_contain_text("error: </script>")
    expect(hostile.get_by_text("more characters are not on this page")).to_be_visible()
    hostile.locator(".fold > summary").first.click()
    expect(hostile.locator("pre").first).to_contain_text(visible(EVIL))
    assert page.locator("img, a[href^=javascript]").count() == 0


def test_a_file_fits_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 375, "height": 800})
    page.goto(f"{page.url}#a1c1998")
    expect(page.locator("#a1c1998 .inside")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_small_tree_is_whole() -> None:
    text = render_page(of(call("root", None, 0), call("leaf", "root", 1)))
    assert text.count("<script") == 1 and "data-total" not in text
    assert text.count('class="inside"') == 2
