"""The page of a rollout with many calls: rows in blocks, bodies on demand, credit afterwards."""

import gzip
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from tests.otlp import insert_otlp, open_empty_store
from tests.transforms.conftest import RECIPE, Scene
from tests.ui.conftest import EVIL, Home
from tests.ui.test_pages import page, press, signed_in

from ltrain_instrument.machine import visible
from ltrain_transforms.datasets import build, dataset_folder
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.show import page_asset
from ltrain_ui.app import FILES, SHARED

__all__ = ["page", "signed_in"]
TURNS = 240
"""Calls of the model in each rollout, with a node around each, and of a tool after each tenth."""
CALLS = 2 * TURNS + 2 * (TURNS // 10)
HOSTILE = 300
"""The `seq` of a call with a hostile answer."""


@pytest.fixture(scope="module")
def scene() -> Scene:
    """A group of two rollouts."""
    scene = Scene()
    for sample in range(2):
        rollout = scene.attempt("t1", sample)
        rollout.dispatch()
        calls = 0
        for turn in range(TURNS):
            is_hostile = HOSTILE in (calls, calls + 1)
            rollout.llm("write", text=EVIL * 3 if is_hostile else f"answer {turn}")
            calls += 2
            if turn % 10 == 9:
                rollout.tool(result="long " * 1_000_000 if turn == 9 else "rows")
                calls += 2
        rollout.evaluate(float(sample))
        rollout.close()
        assert calls == CALLS
    return scene


@pytest.fixture(scope="module")
def home(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("large")
    (folder / "ltrain.toml").write_text(RECIPE)
    with open_empty_store(folder / ".ltrain/store") as store:
        insert_otlp(store, scene.request())
        out = dataset_folder(folder / ".ltrain", "demo", "train", 0)
        built = build(store, Recipe.load(folder / "ltrain.toml"), out, wave=0)
    return Home(folder, [built.id])


@pytest.fixture
def tree(page: Page, scene: Scene) -> Page:
    """The complete page of the first rollout."""
    page.goto(address(scene))
    complete(page)
    return page


def address(scene: Scene, query: str = "") -> str:
    return f"/rollouts/{scene.attempts[0].rollout}{query}"


def complete(page: Page) -> None:
    """Wait until the page has what needs the dataset or the group."""
    expect(page.locator("#extent")).to_contain_text("Rewards, credit and drops")
    expect(page.locator("#extent[data-next]")).to_have_count(0)


def panel(page: Page) -> Locator:
    """The chosen call, beside the tree."""
    return page.get_by_role("region", name="The chosen call of attempt 1")


def row(page: Page, position: int) -> Locator:
    return page.locator(f".row[aria-posinset='{position}']")


def count(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


def test_the_first_calls_come_before_what_the_group_decides(page: Page, scene: Scene) -> None:
    first = page.request.get(address(scene, "?by=recipe")).text()
    assert "All calls are read now." in first and first.count('class="row"') == 50
    assert "outcome reward" not in first and "advantage" not in first
    own = page.request.get(address(scene, "?by=recipe&read=calls")).text()
    assert f'aria-setsize="{CALLS}"' in own and "read=credit" in own
    page.goto(address(scene, "?by=recipe"))
    complete(page)
    expect(page.locator(".about .chip", has_text="group mean 0.500")).to_be_visible()
    expect(page.locator("#extent")).to_contain_text("by the recipe as it is now: ltrain.toml")
    expect(row(page, 2).locator(".chip", has_text="advantage -")).to_be_visible()
    assert count(page) < 3000


def test_what_was_trained_is_read_from_the_dataset(tree: Page, home: Home) -> None:
    expect(tree.locator("#extent")).to_contain_text(f"dataset {home.datasets[0]}")
    expect(tree.locator(".about .chip", has_text="group mean 0.500")).to_be_visible()
    expect(row(tree, 2).locator(".chip", has_text="trained 2")).to_have_count(1)
    press(tree, "r")
    complete(tree)
    expect(tree.locator("#extent")).to_contain_text("ltrain.toml")
    press(tree, "r")
    complete(tree)
    expect(tree.locator("#extent")).to_contain_text(home.datasets[0])


def test_every_call_is_reached_by_keys(tree: Page) -> None:
    row(tree, 1).locator(".call > summary").focus()
    tree.keyboard.press("ArrowDown")
    expect(row(tree, 2).locator(".call > summary")).to_be_focused()
    tree.keyboard.press("End")
    last = row(tree, CALLS)
    expect(last.locator(".call > summary")).to_be_focused()
    tree.keyboard.press("ArrowDown")
    expect(last.locator(".call > summary")).to_be_focused()
    tree.keyboard.press("Enter")
    expect(panel(tree).locator(".message")).to_have_count(2)
    expect(last.locator("summary[aria-current]")).to_have_count(1)
    for position in range(CALLS - 1, CALLS - 31, -1):
        tree.keyboard.press("ArrowUp")
        expect(row(tree, position).locator(".call > summary")).to_be_focused()
    tree.keyboard.press("Home")
    expect(row(tree, 1).locator(".call > summary")).to_be_focused()
    expect(last).to_have_count(0)
    assert count(tree) < 3000
    expect(row(tree, 1).locator("summary[aria-current]")).to_have_count(1)
    tree.keyboard.press("End")
    expect(last.locator("summary[aria-current]")).to_have_count(1)
    expect(last).to_have_attribute("aria-setsize", str(CALLS))


def middle(page: Page) -> int:
    """Return the position of the row in the middle of the screen, when it is there."""
    found = "document.elementFromPoint(innerWidth / 4, innerHeight / 2).closest('.row')"
    for _ in range(600):
        if position := page.evaluate(f"{found}?.getAttribute('aria-posinset')"):
            return int(position)
        page.wait_for_timeout(100)
    raise AssertionError("no row in the middle of the screen")


def test_scrolling_shows_the_rows_on_the_screen(tree: Page) -> None:
    for part in (0.5, 1.0, 0.25):
        tree.evaluate("part => scrollTo(0, part * document.body.scrollHeight)", part)
        assert abs(middle(tree) - part * CALLS) < CALLS / 8
        assert count(tree) < 3000


@pytest.mark.parametrize("link", ["#a1c401", "?call=401", "?attempt=1&call=401&by=recipe"])
def test_a_link_reaches_a_call(page: Page, scene: Scene, link: str) -> None:
    page.goto(address(scene, link))
    complete(page)
    expect(page.locator("#a1c401 > summary[aria-current]")).to_be_in_viewport()
    expect(panel(page).locator(".message").first).to_be_visible()
    expect(panel(page).get_by_role("heading").first).to_contain_text("#401")


def test_a_link_reaches_a_call_without_a_script(
    signed_in: BrowserContext, browser: Browser, scene: Scene, page: Page
) -> None:
    page.goto("/sql")
    base = page.url.removesuffix("/sql")
    context = browser.new_context(
        java_script_enabled=False, storage_state=signed_in.storage_state()
    )
    plain = context.new_page()
    plain.goto(base + address(scene, "?call=401"), timeout=120_000)
    expect(plain.locator("#a1c401 .message").first).to_be_visible()
    plain.get_by_role("spinbutton", name="Call #").fill("7")
    plain.get_by_role("button", name="Go", exact=True).click()
    expect(plain.locator("#a1c7 .inside")).to_be_visible()
    plain.goto(base + address(scene), timeout=120_000)
    plain.get_by_role("link", name="Wait for it").click()
    expect(plain.locator(".about .chip", has_text="group mean 0.500")).to_be_visible()
    context.close()


def test_a_call_is_reached_by_its_number(tree: Page) -> None:
    field = tree.get_by_role("spinbutton", name="Call #")
    field.fill(str(HOSTILE + 60))
    field.press("Enter")
    expect(panel(tree).get_by_role("heading").first).to_contain_text(f"#{HOSTILE + 60}")
    field.fill("99999")
    field.press("Enter")
    expect(tree.locator("input:invalid")).to_have_count(1)
    assert field.evaluate("field => field.validationMessage") == "There is no call #99999."


def test_hostile_text_of_a_large_tree_is_text(tree: Page, scene: Scene) -> None:
    for call in (HOSTILE, HOSTILE + 1, 21):
        tree.get_by_role("spinbutton", name="Call #").fill(str(call))
        tree.get_by_role("button", name="Go", exact=True).click()
        expect(panel(tree).get_by_role("heading").first).to_contain_text(f"#{call} ")
    cut = panel(tree).get_by_text("4,980,000 more characters are not on this page")
    expect(cut.first).to_be_visible()
    tree.goto(address(scene, f"?call={HOSTILE + 1}"))
    complete(tree)
    expect(panel(tree).get_by_text(visible(EVIL) * 3, exact=False).first).to_be_visible()
    assert tree.locator("img, main script, a[href^=javascript]").count() == 0


def test_keys_of_the_list_lead_from_a_large_rollout_to_the_next(page: Page) -> None:
    page.goto("/rollouts?run=demo")
    ids = page.locator("a.item").all_inner_texts()
    page.locator("a.item").first.click()
    complete(page)
    page.locator(".call > summary").first.focus()
    press(page, "j")
    expect(page.locator("p.id")).to_contain_text(ids[1])
    complete(page)
    press(page, "u")
    expect(page.locator("a.item")).to_have_count(2)


def test_fragments_of_what_does_not_exist_are_refused(page: Page, scene: Scene) -> None:
    of = f"of=rollout:{scene.attempts[0].rollout}&read=calls"
    for query, status in {
        f"body?{of}&attempt=1&call=99999": 404,
        f"position?{of}&attempt=2&call=0": 404,
        f"tokens?{of}&attempt=1&call=1": 404,
        f"tokens?{of}&attempt=1&call=1&dataset=../..": 404,
        f"fault?{of}&attempt=1&call=x": 400,
        f"spans.json?{of}&attempt=1&call=99999": 404,
        f"rows?{of}&attempt=1&at=x": 400,
        f"rows?{of.replace('calls', 'all')}&attempt=1&at=0": 400,
        "rows?of=rollout:zz&attempt=1&at=0": 404,
        f"rows?{of}&attempt=1&at=99999": 200,
        f"rows?{of}&attempt=1&at=25&tree=forgotten": 200,
    }.items():
        assert page.request.get(f"/calls/{query}").status == status, query


def test_the_tokens_of_a_trained_call_are_coloured(tree: Page) -> None:
    row(tree, 2).locator(".call > summary").click()
    shading = panel(tree).locator(".answer .shading")
    expect(shading.locator(".t")).to_have_count(2)
    expect(shading.locator(".t").first).to_have_class(re.compile(r"\ban5\b"))
    title = shading.locator(".t").first.get_attribute("title")
    assert title is not None and "call #1 by sql@0; advantage -0." in title
    shading.get_by_role("button", name="weight").click()
    expect(shading).to_have_attribute("data-shade", "weight")
    tree.keyboard.press("ArrowDown")
    row(tree, 4).locator(".call > summary").click()
    expect(panel(tree).get_by_role("heading").first).to_contain_text("#3 ")
    expect(panel(tree).locator(".shading")).to_have_attribute("data-shade", "weight")


def test_the_spans_of_a_call_are_json(tree: Page) -> None:
    row(tree, 2).locator(".call > summary").click()
    address = panel(tree).get_by_role("link", name="Spans as JSON").get_attribute("href")
    assert address is not None
    spans = tree.request.get(address).json()
    assert {span["SpanName"] for span in spans} >= {"chat sql", "openai.chat"}
    assert all(isinstance(span["SpanAttributes"], dict) for span in spans)


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.nightly), 375])
def test_a_large_tree_fits_a_screen(tree: Page, width: int) -> None:
    tree.set_viewport_size({"width": width, "height": 800})
    row(tree, 1).locator(".call > summary").focus()
    tree.keyboard.press("End")
    expect(row(tree, CALLS).locator(".call > summary")).to_be_focused()
    tree.keyboard.press("Enter")
    shown = panel(tree) if width > 1000 else row(tree, CALLS)
    expect(shown.locator(".inside")).to_be_visible()
    assert tree.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_the_files_of_the_browser_are_small() -> None:
    import ltrain_ui

    static = Path(ltrain_ui.__file__).parent / "static"
    texts = [page_asset(name) if name in SHARED else (static / name).read_text() for name in FILES]
    assert sum(len(text.encode()) for text in texts) <= 150_000
    assert sum(len(gzip.compress(text.encode())) for text in texts) <= 25_000
