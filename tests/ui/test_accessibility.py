"""Every page for people who use a keyboard, a screen reader, a dark screen or a phone."""

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page
from tests.ui.conftest import Home
from tests.ui.test_pages import page, signed_in

__all__ = ["page", "signed_in"]
CONTRAST = 4.5
"""The least ratio that WCAG 2 AA allows for text."""
UNNAMED = re.compile(r"^\s*- (?:link|button|textbox|combobox|checkbox|searchbox|img)(?::|$| \[)")
"""A line of a snapshot with a control that has no name."""
FAINT = """
() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.e-]+/g).map(Number);
    return text.startsWith("color(") ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
  };
  const over = (top, below) =>
    below.map((value, i) => (i < 3 ? top[i] * top[3] + value * (1 - top[3]) : 1));
  const background = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      layers.push(parse(getComputedStyle(at).backgroundColor));
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = (colour) => colour.slice(0, 3).map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (text, below) => {
    const [a, b] = [light(over(text, below)), light(below)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const found = [];
  const check = (text, colour, element) => {
    const value = ratio(parse(colour), background(element));
    if (value < LIMIT) found.push(`${value.toFixed(2)} ${colour}: ${text.slice(0, 40)}`);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("title, noscript")) continue;
    if (!element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    check(node.data.trim(), element.closest("svg") ? style.fill : style.color, element);
  }
  for (const input of document.querySelectorAll("[placeholder]")) {
    check(input.placeholder, getComputedStyle(input, "::placeholder").color, input);
  }
  return [...new Set(found)];
}
""".replace("LIMIT", str(CONTRAST))
FOCUSABLE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
MARK = f"""
() => [...document.querySelectorAll("{FOCUSABLE}")]
  .filter((one) => one.getClientRects().length && one.checkVisibility())
  .map((one, number) => (one.dataset.stop = number))
"""
FOCUSED = """
() => {
  const one = document.activeElement, style = getComputedStyle(one);
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  return [one.dataset.stop ?? null, seen, one.outerHTML.slice(0, 80)];
}
"""


@pytest.fixture(scope="module")
def addresses(home: Home, signed_in: BrowserContext) -> list[str]:
    """The addresses of a page of each kind."""
    text = signed_in.request.get("/rollouts?run=demo&mode=train&wave=1").text()
    found = re.findall(r'href="(/rollouts/[^"?]+)', text)
    assert len(found) == 4
    first, second = home.datasets[:2]
    return [
        "/",
        "/runs/demo",
        "/runs/demo/waves/1?mode=train",
        "/runs/demo/waves/1/rules?mode=train",
        "/runs/demo/tasks/t2",
        "/groups?run=demo&mode=train&wave=1&task=t1",
        "/rollouts",
        "/rollouts?run=none",
        found[0],
        f"{found[0]}/tokens",
        f"{found[0]}/tokens?by=logprob",
        "/policies/sql",
        "/policies/sql/deployment",
        f"/datasets/{first}",
        f"/datasets/{first}?against={second}",
        "/feedback",
        "/compare",
        "/compare?runs=demo&by=hour",
        "/compare?a=sql@0&b=sql@2&mode=train",
        "/compare?a=sql@0&b=sql@2&mode=train&task=t2",
        "/sql",
        "/sql?query=SELECT%20*%20FROM%20otel.rollouts",
        "/live",
    ]


def test_screen_readers_get_headings_names_and_table_headers(
    page: Page, addresses: Sequence[str]
) -> None:
    faults = list[Any]()
    for address in addresses:
        page.goto(address)
        snapshot = page.locator("body").aria_snapshot()
        faults += [(address, line) for line in snapshot.splitlines() if UNNAMED.match(line)]
        if len(re.findall(r"heading .*\[level=1\]", snapshot)) != 1:
            faults.append((address, "has not one heading of level 1"))
        for part in ('- navigation "Pages"', "- main", "- search"):
            if part not in snapshot:
                faults.append((address, f"lacks {part}"))
        headers = page.locator("table").evaluate_all(
            "tables => tables.map(table => [...table.tHead.rows[0].cells].map("
            "cell => cell.tagName + cell.textContent.trim()))"
        )
        faults += [
            (address, cells)
            for cells in headers
            if not cells or any(len(cell) < 3 or cell[:2] != "TH" for cell in cells)
        ]
    assert not faults, "\n".join(map(str, faults))


SERIOUS = ("serious", "critical")
"""Impacts of faults that axe-core must not find."""


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_axe_finds_no_serious_fault(page: Page, addresses: Sequence[str], scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    source = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    faults = list[Any]()
    for address in addresses:
        page.goto(address)
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.evaluate(source)
        done = page.evaluate("axe.run(document)")
        assert len(done["passes"]) > 10, address
        faults += [
            (address, fault["id"], fault["nodes"][0]["html"][:200], fault["help"])
            for fault in done["violations"]
            if fault["impact"] in SERIOUS
        ]
    assert not faults, "\n".join(map(str, faults))


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_text_has_contrast(page: Page, addresses: Sequence[str], scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    faults = {}
    for address in addresses:
        page.goto(address)
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        if found := page.evaluate(FAINT):
            faults[address] = found
    assert faults == {}


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.nightly), 375])
def test_pages_fit_a_screen(page: Page, addresses: Sequence[str], width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    wide = {}
    for address in addresses:
        page.goto(address)
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if overflow > 0:
            wide[address] = overflow
    assert wide == {}


def test_everything_is_reached_by_the_keyboard_with_a_visible_focus(
    page: Page, addresses: Sequence[str]
) -> None:
    faults = list[Any]()
    for address in addresses:
        page.goto(address)
        if address != "/live":  # its stream does not end
            page.wait_for_load_state("networkidle")
        stops = page.evaluate(MARK)
        reached = list[str | None]()
        for _ in range(min(len(stops), 60)):
            page.keyboard.press("Tab")
            stop, is_visible, html = page.evaluate(FOCUSED)
            reached.append(stop)
            if not is_visible:
                faults.append((address, "the focus is not visible", html))
        expected = [str(stop) for stop in stops[:60]]
        if reached != expected:
            faults.append((address, "not in order", reached, expected))
    assert not faults, "\n".join(map(str, faults))
