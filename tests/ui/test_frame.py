"""What every page has: navigation, the places above it, search, keys, and tables that sort."""

import re
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from tests.ui.conftest import EVIL, Home
from tests.ui.test_pages import page, signed_in

__all__ = ["page", "signed_in"]


@pytest.mark.parametrize(
    ("address", "section", "places"),
    [
        ("/", "Runs", []),
        ("/runs/demo", "Runs", ["Runs", "demo"]),
        ("/runs/demo/waves/1?mode=train", "Runs", ["Runs", "demo", "train 1"]),
        ("/runs/demo/waves/1/rules?mode=train", "Runs", ["Runs", "demo", "train 1", "rules"]),
        ("/runs/demo/tasks/t2", "Runs", ["Runs", "demo", "t2"]),
        ("/groups?run=demo&mode=train&wave=1&task=t1", "Runs", ["Runs", "demo", "train 1", "t1"]),
        ("/rollouts", "Rollouts", []),
        ("/rollouts?unrated=reward", "Feedback", []),
        ("/policies", "Policies", []),
        ("/policies/sql@2", "Policies", ["Policies", "sql", "v2"]),
        ("/policies/sql/deployment", "Policies", ["Policies", "sql", "deployment"]),
        ("/datasets", "Datasets", []),
        ("/live", "Live", []),
        ("/sql", "SQL", []),
    ],
)
def test_a_page_knows_its_place(signed_in: Any, address: str, section: str, places: Any) -> None:
    text = signed_in.request.get(address).text()
    [marked] = re.findall(r'<a href="[^"]*" aria-current="page">([^<]+)</a>', text)
    assert marked == section
    [crumbs] = re.findall(r'<nav class="crumbs".*?</nav>', text, re.DOTALL)
    assert re.findall(r">([^<>/]*[^<>/\s][^<>/]*)</(?:a|span)>", crumbs) == places


def test_from_a_rollout_to_its_group_and_a_sibling(page: Page) -> None:
    page.goto("/groups?run=demo&mode=train&wave=1&task=t1")
    page.locator("a.item").first.click()
    group = page.get_by_role("group", name="Its group")
    expect(group.get_by_role("link")).to_have_count(2)
    other = group.locator("a:not([aria-current])")
    expect(other).to_have_attribute("title", re.compile(r"sample \d: [01]"))
    before = page.locator("p.id").text_content() or ""
    other.click()
    expect(page.locator("p.id")).not_to_have_text(before)
    expect(page.locator(".about").first).to_contain_text("group mean 0.500")
    page.get_by_role("navigation", name="Place").get_by_role("link", name="train 1").click()
    expect(page.get_by_role("heading", name="wave train 1 of run demo")).to_be_visible()


def test_suggestions_are_chosen_by_keys(page: Page, home: Home) -> None:
    page.goto("/sql")
    page.wait_for_load_state()
    page.locator("h1").click()
    page.keyboard.press("/")
    page.keyboard.type("dem")
    options = page.get_by_role("listbox", name="Suggestions").get_by_role("option")
    expect(options.first).to_have_text("rundemo")
    expect(options.last).to_have_text("textcalls with “dem”")
    page.keyboard.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="run demo")).to_be_visible()
    find = page.get_by_role("combobox", name="Find")
    for text, first in {"t2": "taskt2", "sql@": "policysql", home.datasets[1]: "dataset"}.items():
        find.fill(text)
        expect(options.first).to_contain_text(first)
    find.fill(EVIL)
    expect(options.last).to_contain_text("onerror=alert(1)")
    find.press("Escape")
    expect(options).to_have_count(0)


def test_keys_are_shown(page: Page) -> None:
    page.goto("/runs/demo/waves/1?mode=train")
    page.wait_for_load_state()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    expect(dialog).to_contain_text("What rules give on it")
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()


def test_a_table_sorts_and_the_address_keeps_it(page: Page, signed_in: BrowserContext) -> None:
    signed_in.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/runs/demo")
    folded = page.locator("details.numbers", has_text="Evaluations in training")
    folded.locator("> summary").click()
    rewards = folded.locator("table")
    order = rewards.locator("tbody td:nth-child(2)")
    for expected in (["0.250", "0.375", "0.500"], ["0.500", "0.375", "0.250"]):
        rewards.get_by_role("button", name="reward").click()
        expect(order).to_have_text(expected)
    page.reload()
    expect(order).to_have_text(["0.500", "0.375", "0.250"])
    expect(rewards.locator("th").nth(1)).to_have_attribute("aria-sort", "descending")
    folded.locator("> summary").click()
    rewards.locator("xpath=..").locator("xpath=following-sibling::button").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied[:2] == ['"wave","reward"', '"2","0.500"']


def test_a_table_is_filtered_and_its_columns_are_chosen(
    page: Page, signed_in: BrowserContext
) -> None:
    signed_in.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/runs/demo")
    waves = page.locator("h2:has-text('Waves') + .scroll table")
    rows = waves.locator("tbody tr:visible")
    expect(rows).to_have_count(4)
    menu = page.locator("details.columns").first
    menu.locator("summary").click()
    menu.get_by_label("Rows whose wave").fill("TRAIN")
    expect(rows).to_have_count(3)
    menu.get_by_label("Rows whose rollouts").fill("> 4")
    expect(page.get_by_text("val 0")).to_be_hidden()
    expect(rows).to_have_count(0)
    menu.get_by_label("Rows whose rollouts").fill(">= 4")
    expect(rows).to_have_count(3)
    menu.get_by_role("checkbox", name="policy").uncheck()
    expect(waves.get_by_role("columnheader", name="policy")).to_be_hidden()
    waves.get_by_role("button", name="wave").click()
    page.reload()
    expect(rows).to_have_count(3)
    expect(waves.locator("th").first).to_have_attribute("aria-sort", "ascending")
    expect(waves.get_by_role("columnheader", name="policy")).to_be_hidden()
    waves.locator("xpath=..").locator("xpath=following-sibling::button").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert len(copied) == 4 and copied[0].startswith('"wave","rollouts"')
    menu.locator("summary").click()
    menu.get_by_role("checkbox", name="policy").check()
    menu.get_by_label("Rows whose wave").fill("")
    menu.get_by_label("Rows whose rollouts").fill("")
    expect(rows).to_have_count(4)
    expect(page).to_have_url(re.compile(r"/runs/demo\?sort=0.0$"))


def test_a_run_begins_with_its_figures(page: Page) -> None:
    page.goto("/runs/demo")
    tiles = page.locator(".tiles > div").all_inner_texts()
    assert [tile.splitlines()[:2] for tile in tiles[:4]] == [
        ["Held-out score", "0.375"],
        ["Reward in training", "0.500"],
        ["Rollouts", "14"],
        ["Trained tokens", "24"],
    ]
    assert "+0.250 since 0.250 in the first" in tiles[1]


def test_charts_have_switches_and_a_cursor_for_all_of_them(page: Page) -> None:
    page.goto("/runs/demo")
    reward = page.locator("figure", has_text="Reward in training")
    rules = page.locator("figure", has_text="Reward by rule")
    expect(reward.locator(".legend")).to_contain_text("last 0.500")
    reward.locator("circle").nth(1).hover()
    expect(reward.locator(".legend")).to_contain_text("1: 0.375")
    expect(rules.locator(".cursor")).to_have_attribute("visibility", "visible")
    page.get_by_role("heading", level=1).hover()
    expect(reward.locator(".legend")).to_contain_text("last 0.500")
    raw = reward.locator("polyline").first.get_attribute("points")
    page.get_by_label("smoothing").select_option("0.9")
    page.get_by_role("button", name="Draw").click()
    expect(page).to_have_url(re.compile("smooth=0.9"))
    assert reward.locator("polyline").first.get_attribute("points") != raw
    page.goto("/runs/demo?scale=cubic&smooth=x")
    assert reward.locator("polyline").first.get_attribute("points") == raw


def test_two_runs_in_the_same_charts(page: Page) -> None:
    page.goto("/compare")
    page.get_by_role("checkbox", name="demo").check()
    page.get_by_role("button", name="Draw them in the same charts").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("1 run, by wave")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", level=1)).to_have_text("1 run, by rollout")
    page.goto("/compare?runs=demo,none&by=hour")
    expect(page.get_by_role("heading", level=1)).to_have_text("2 runs, by hour")
    assert page.request.get("/compare?runs=demo&by=year").status == 400
