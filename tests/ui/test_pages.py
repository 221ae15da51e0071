"""The pages in a real browser: what a person opens, presses and reads."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect
from tests.ui.conftest import EVIL, Home, running

from ltrain_instrument.machine import visible
from ltrain_ui.queries import NAMED


@pytest.fixture(scope="module")
def signed_in(home: Home, browser: Browser) -> Iterator[BrowserContext]:
    """A browser that has opened the printed link."""
    with running(home.folder, "--store", home.store) as (link, _):
        context = browser.new_context(base_url=link.partition("#")[0])
        context.set_default_timeout(120_000)  # milliseconds: a busy machine is slow
        page = context.new_page()
        page.goto(link)
        expect(page.get_by_role("link", name="demo")).to_be_visible()
        assert "#" not in page.url
        page.close()
        yield context
        context.close()


@pytest.fixture
def page(signed_in: BrowserContext) -> Iterator[Page]:
    """A page whose errors, dialogs and requests to other hosts fail the test."""
    page, faults = signed_in.new_page(), list[str]()

    def check_host(request: Request) -> None:
        if not request.url.startswith("http://127.0.0.1:"):
            faults.append(request.url)

    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text))
    page.on("dialog", lambda dialog: faults.append(dialog.message))
    page.on("request", check_host)
    yield page
    page.close()
    assert faults == []


def test_from_a_run_to_a_rollout_by_links(page: Page, home: Home) -> None:
    page.goto("/")
    row = page.get_by_role("row", name="demo", exact=False).first
    expect(row).to_contain_text("0.250 to 0.500")
    page.get_by_role("link", name="demo", exact=True).click()
    expect(page.get_by_role("heading", name="run demo")).to_be_visible()
    page.get_by_role("link", name="train 1").click()
    expect(page.get_by_role("heading", name="wave train 1 of run demo")).to_be_visible()
    expect(page.get_by_role("row", name="rows 4", exact=True)).to_be_visible()
    # the groups with the widest spread come first
    expect(page.locator("h2:has-text('Groups') + .scroll a").first).to_have_text("t1")
    page.get_by_role("link", name="t1", exact=True).click()
    expect(page.get_by_role("heading", name="task t1, train wave 1")).to_be_visible()
    expect(page.locator("a.item")).to_have_count(2)
    page.locator("a.item").first.click()
    expect(page.locator("p.id")).to_contain_text("rollout ")
    expect(page.locator(".about .chip", has_text="group mean 0.500")).to_be_visible()


def test_a_group_side_by_side_parts_at_a_call(page: Page) -> None:
    page.goto("/groups?run=demo&mode=train&wave=1&task=t1")
    best, other = page.get_by_role("row", name="they part here").get_by_role("cell").all()
    expect(best).to_contain_text("answer 1")
    expect(other).to_contain_text("answer 0")
    expect(best).to_contain_text("advantage +")
    expect(other).to_contain_text("advantage -")
    expect(best.locator(".differs")).to_have_count(0)
    expect(other.locator(".differs")).to_have_count(1)
    tools = page.get_by_role("row").last.get_by_role("cell")
    # the model asked for the call that failed
    expect(other).to_contain_text("tool-failed -0.200")
    expect(tools.nth(1)).to_contain_text("error: boom")
    page.get_by_role("link", name="wave 1").click()
    expect(page.get_by_role("heading", name="wave train 1 of run demo")).to_be_visible()


def test_an_edited_recipe_beside_the_trained_one(page: Page, home: Home) -> None:
    recipe = home.folder / "ltrain.toml"
    before = recipe.read_text()
    recipe.write_text(before.replace('value = "-0.2"', 'value = "-0.25"'))
    try:
        page.goto("/runs/demo/waves/1?mode=train")
        press(page, "r")
        expect(page.get_by_role("heading", name="rules on train 1 of run demo")).to_be_visible()
    finally:
        recipe.write_text(before)
    now, trained, key = page.get_by_role("row", name="tool-failed").all()
    expect(now).to_contain_text("-0.250")
    expect(trained).to_contain_text("-0.200")
    expect(key).to_contain_text("-0.25")
    press(page, "u")
    expect(page.get_by_role("heading", name="wave train 1 of run demo")).to_be_visible()


def test_a_task_wave_by_wave(page: Page) -> None:
    page.goto("/groups?run=demo&mode=train&wave=1&task=t2")
    press(page, "w")
    expect(page.get_by_role("heading", name="task t2")).to_be_visible()
    rows = page.locator("tbody tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["train", "0", "sql@0", "2", "0", "0,", "0"],
        ["train", "1", "sql@1", "2", "0.250", "0.250,", "0.250"],
        ["train", "2", "sql@2", "2", "0.500", "0.500,", "0.500"],
    ]
    page.get_by_role("link", name="train 2").click()
    expect(page.get_by_role("heading", name="task t2, train wave 2")).to_be_visible()
    response = page.request.get("/runs/demo/tasks/t7")
    assert response.status == 404 and "no rollout of a task" in response.text()


def test_a_point_of_a_chart_is_a_link_to_its_wave(page: Page) -> None:
    page.goto("/runs/demo")
    page.locator("figure", has_text="Reward in training").locator("svg.chart a").nth(2).click()
    expect(page.get_by_role("heading", name="wave train 2 of run demo")).to_be_visible()


def press(page: Page, key: str) -> None:
    """Press a key when the page's script has been loaded."""
    page.wait_for_load_state()
    page.keyboard.press(key)


def test_keys_move_in_a_list_and_from_rollout_to_rollout(page: Page) -> None:
    page.goto("/rollouts?run=demo&mode=train&wave=0")
    ids = page.locator("a.item").all_inner_texts()
    assert len(ids) == 4
    for key in ("j", "j", "k"):
        page.keyboard.press(key)
    expect(page.locator("a.item").nth(0)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("p.id")).to_contain_text(ids[0])
    for number in (1, 2, 3):
        press(page, "j")
        expect(page.locator("p.id")).to_contain_text(ids[number])
    expect(page.get_by_role("link", name="Older")).to_have_count(0)
    press(page, "k")
    expect(page.locator("p.id")).to_contain_text(ids[2])
    press(page, "u")
    expect(page.locator("a.item")).to_have_count(4)


def test_a_filter_is_a_link(page: Page) -> None:
    page.goto("/rollouts")
    page.get_by_label("task").fill("t2")
    page.get_by_label("text").fill("ANSWER 1")
    page.get_by_label("with errors").check()
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("No rollout or trace matches.")).to_be_visible()
    page.get_by_label("with errors").uncheck()
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("a.item")).to_have_count(3)
    assert "task=t2" in page.url and "text=ANSWER+1" in page.url
    expect(page.get_by_label("task")).to_have_value("t2")


def test_a_list_names_writers_that_no_dialect_reads(page: Page) -> None:
    page.goto("/rollouts")
    note = page.locator("p.warn")
    expect(note).to_contain_text("of the scope 'acme.tracing' 2.1, in 2 spans: declare how with")
    expect(note).to_contain_text("No dialect reads acme.args, acme.kind, acme.request")
    page.goto("/rollouts?run=demo")
    expect(page.locator("a.item")).not_to_have_count(0)
    expect(note).to_have_count(0)


def test_a_wrong_address_is_explained(page: Page) -> None:
    for address, sentence in {
        "/rollouts?wave=two": "wave&#39; is a number",
        "/rollouts?older_than=x.y": "older_than&#39; is a number",
        "/groups?run=demo": "wave&#39; is a number",
    }.items():
        response = page.request.get(address)
        assert response.status == 400 and sentence in response.text()
    for address, sentence in {
        "/runs/dmeo": "Did you mean the run &#39;demo&#39;?",
        "/runs/demo/waves/7": "no rollout of wave 7 of run",
        "/rollouts/zz": "Nothing is called",
        "/groups?run=demo&wave=0&task=t7": "no rollout of task",
        "/rollouts/zz/tokens": "has a row of rollout",
        "/policies/sql@9": "Choose from: 0, 1, 2, 3",
        "/datasets/etc": "There is no dataset",
        "/find?id=": "Type the id",
        "/nothing": "There is no page /nothing",
    }.items():
        response = page.request.get(address)
        assert response.status == 404 and sentence in response.text(), address


def test_from_a_version_to_its_dataset_and_back(page: Page, home: Home) -> None:
    page.goto("/")
    page.get_by_role("link", name="sql", exact=True).click()
    expect(page.get_by_role("heading", name=f"policy sql@{len(home.datasets)}")).to_be_visible()
    page.get_by_role("link", name=home.datasets[0], exact=True).click()
    expect(page.get_by_role("heading", name=f"dataset {home.datasets[0]}")).to_be_visible()
    page.goto(f"/datasets/{home.datasets[0]}?against={home.datasets[1]}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("against")


def test_a_group_by_outcome_and_from_sample_to_sample(page: Page) -> None:
    page.goto("/groups?run=demo&mode=train&wave=1&task=t1")
    cells = page.get_by_role("row", name="advantages").get_by_role("cell")
    expect(cells.nth(0).locator("i")).to_have_attribute("title", re.compile(r"advantage \+0\.8"))
    expect(cells.nth(0).locator("i")).to_have_class("ap5")
    page.locator("a.item").first.click()
    title = page.locator("p.id").text_content()
    page.get_by_role("link", name="Sample before").or_(
        page.get_by_role("link", name="Next sample")
    ).first.click()
    expect(page.locator("p.id")).not_to_have_text(title or "")


def test_the_same_call_of_the_siblings(page: Page) -> None:
    page.goto("/groups?run=demo&mode=train&wave=1&task=t1")
    page.locator("a.item").first.click()
    panel = page.get_by_role("region", name="The chosen call of attempt 1")
    panel.get_by_text("The same call in its siblings").click()
    expect(panel.locator("dd pre", has_text="answer 0").first).to_be_visible()
    expect(panel.locator("dd pre", has_text="answer 1").first).to_be_visible()
    expect(panel.get_by_text("advantage -0.8")).to_be_visible()


def test_an_exception_shows_its_stack(page: Page) -> None:
    page.goto("/groups?run=demo&mode=train&wave=1&task=t1")
    page.locator("a.item").last.click()
    page.locator(".call:has(> summary .failed) > summary").last.click()
    panel = page.get_by_role("region", name="The chosen call of attempt 1")
    expect(panel.locator(".chip.bad")).to_contain_text("error: boom")


def test_the_tokens_of_a_rollout_as_they_were_trained(page: Page, home: Home) -> None:
    page.goto("/groups?run=demo&mode=train&wave=1&task=t1")
    page.locator("a.item").first.click()
    press(page, "t")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Trained rows of rollout")
    expect(page.get_by_text("3 in the prompt, 2 after it, 2 trained")).to_be_visible()
    first = page.locator(".tokens span").first
    expect(first).to_have_text("⟨4⟩")  # the home has no tokenizer
    expect(first).to_have_class("t ap5 ln5 wp5")
    expect(first).to_have_attribute("title", re.compile(r"call #1 by sql@1; advantage \+0\.8"))
    page.get_by_role("link", name="logprob").click()
    expect(page.locator("[data-shade]")).to_have_attribute("data-shade", "logprob")
    page.get_by_role("link", name="sql@2").click()
    expect(page.get_by_role("heading", name="policy sql@2")).to_be_visible()
    page.get_by_role("link", name=home.datasets[1]).first.click()
    page.get_by_role("link", name="sql@2").click()
    expect(page.get_by_role("heading", name="policy sql@2")).to_be_visible()


def test_two_versions_task_by_task(page: Page) -> None:
    page.goto("/compare?a=sql@0&b=sql@2&mode=train")
    # t1 has the same rewards in every wave; t2 rises from 0 to 0.5
    expect(page.get_by_text("reward +0.250")).to_be_visible()
    expect(page.get_by_text("[0.000, 0.500]")).to_be_visible()
    rows = page.locator("tbody tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["t1", "+0.000", "0.500", "0.500", "2,", "2"],
        ["t2", "+0.500", "0", "0.500", "2,", "2"],
    ]
    page.get_by_role("link", name="t2").click()
    expect(page.get_by_role("heading", name="task t2: sql@2 against sql@0")).to_be_visible()
    versions = page.get_by_role("row", name="version").get_by_role("cell").all_inner_texts()
    assert versions == ["sql@0", "sql@0", "sql@2", "sql@2"]
    summaries = list[str]()
    for index in (2, 3):  # the other version answered as the first one did, and otherwise
        page.get_by_label("second").select_option(index=index)
        page.get_by_role("button", name="Compare").click()
        summaries.append(page.locator("form[action='#calls'] + p").inner_text())
        if summaries[-1] == "2 changed.":
            changed = page.get_by_role("row", name="changed llm")
            texts = changed.locator("del, ins").all_inner_texts()
            assert sorted(texts) == ["0", "1"]
            expect(page.get_by_role("row", name="changed tool")).to_contain_text(": error: boom")
    assert sorted(summaries) == ["2 changed.", "2 same."]
    assert "second=" in page.url and "task=t2" in page.url
    press(page, "u")
    expect(page.get_by_text("reward +0.250")).to_be_visible()
    for query, sentence in {
        "a=sql&b=sql@2": "is not a version of a policy",
        "a=sql@0&b=sql@7": "no rollout in mode &#39;val&#39; that sql@7",
    }.items():
        response = page.request.get(f"/compare?{query}")
        assert response.status == 404 and sentence in response.text()
    page.goto("/policies/sql@2")
    link = page.get_by_role("link", name="Compare with its parent")
    expect(link).to_have_attribute("href", "/compare?a=sql%401&b=sql%402&mode=val&name=reward")


def test_sql_reads_only_and_is_a_link(page: Page) -> None:
    page.goto("/sql")
    for name, query in NAMED.items():
        response = page.request.get("/sql", params={"query": query})
        assert response.status == 200, (name, response.text())
    page.get_by_role("link", name="reward by wave").click()
    expect(page.get_by_role("row", name="demo train 2 reward 0.5 4")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0] == '"run","mode","wave","name","mean","judged"' and len(lines) > 4
    page.get_by_label("SQL").fill("SELECT number FROM numbers(5000)")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("1,000 rows, the first of more")).to_be_visible()
    for query in ("DROP TABLE otel.otel_traces", "SELECT nothing", "INSERT INTO x VALUES (1)"):
        response = page.request.get("/sql", params={"query": query})
        assert response.status == 400 and 'role="alert"' in response.text()
        assert page.request.get("/sql.csv", params={"query": query}).status == 400


def test_a_query_that_is_too_large_is_cut_with_a_sentence(page: Page) -> None:
    wide = "SELECT repeat('x', 1999) AS text FROM numbers(5000)"
    for query, sentence in {
        wide: "500 rows, the first of more: a page shows at most a million characters",
        "SELECT repeat('y', 900000) AS text": "1 row;",
        "SELECT number FROM numbers(1000)": "1,000 rows;",
        "SELECT number FROM numbers(1001)": "1,000 rows, the first of more: a page shows at most",
        "SELECT 1 AS one WHERE 0": "0 rows;",
        "SELECT sum(cityHash64(number)) FROM numbers(1e12) SETTINGS max_execution_time = 1": (
            "The query was ended, because it took longer than the limit of 30 s"
        ),
    }.items():
        response = page.request.get("/sql", params={"query": query})
        assert sentence in response.text(), query
        assert len(response.body()) < 1_200_000
    page.goto(f"/sql?query={quote(wide)}")
    expect(page.get_by_label("SQL")).to_have_value(wide)


def test_near_ids_are_links(page: Page, home: Home) -> None:
    page.goto("/rollouts?run=demo&mode=train&wave=0")
    whole = page.locator("a.item").first.get_attribute("href") or ""
    rollout = whole.partition("?")[0].rpartition("/")[2]
    wrong = f"{rollout[:9]}zz{rollout[11:]}"
    for address, kind, name in (
        (f"/rollouts/{wrong}", "rollout", rollout),
        (f"/rollouts/{wrong[:12].upper()}", "rollout", rollout),
        ("/runs/DMEO", "run", "demo"),
        ("/policies/sqll", "policy", "sql"),
        (f"/datasets/{home.datasets[0][1:]}", "dataset", home.datasets[0]),
        ("/find?id=dmeo", "run", "demo"),
    ):
        response = page.request.get(address)
        found = unescape(response.text())
        assert response.status == 404 and f"Did you mean the {kind} '{name}'" in found, address
        [link] = re.findall(rf'class="item" href="([^"]*{name})"', found)
        page.goto(link)
        expect(page.locator("main")).to_contain_text(name[:12])


def test_an_id_of_any_kind_is_found(page: Page, home: Home) -> None:
    page.goto("/rollouts?run=demo&mode=train&wave=0")
    rollout = page.locator("a.item").first.inner_text()
    for name, title in {
        "demo": "run demo",
        "sql@1": "policy sql@1",
        home.datasets[0]: f"dataset {home.datasets[0]}",
        rollout: f"rollout {rollout}",
    }.items():
        page.get_by_role("combobox", name="Find").fill(name)
        page.get_by_role("combobox", name="Find").press("Enter")
        expect(page.locator("main")).to_contain_text(title)


def test_hostile_text_is_text(page: Page) -> None:
    page.goto("/rollouts?run=demo&mode=val")
    expect(page.get_by_text(visible(EVIL), exact=False).first).to_be_visible()
    page.get_by_role("row", name="onerror").get_by_role("link").click()
    page.locator(".call > summary", has_text="sql").click()
    panel = page.get_by_role("region", name="The chosen call of attempt 1")
    expect(panel.get_by_text(visible(EVIL) * 3, exact=False).first).to_be_visible()
    page.goto("/runs/demo/waves/0?mode=val")
    expect(page.get_by_role("link", name=visible(f"t{EVIL}"), exact=True)).to_be_visible()
    assert page.locator("img, main script, a[href^=javascript]").count() == 0


def test_a_link_signs_in_again_and_a_wrong_one_says_so(home: Home, browser: Browser) -> None:
    with running(home.folder, "--store", "http://127.0.0.1:1") as (link, _):
        first, second = browser.new_context(), browser.new_context()
        page = first.new_page()
        page.goto(link)
        # the store is away: the page says so, and shows what the home has
        expect(page.get_by_text("127.0.0.1:1")).to_be_visible()
        expect(page.get_by_role("link", name="sql", exact=True)).to_be_visible()
        response = page.request.get(link.partition("#")[0] + "rollouts")
        assert response.status == 503
        late = second.new_page()
        late.goto(link)
        expect(late.get_by_role("link", name="sql", exact=True)).to_be_visible()
        late.context.clear_cookies()
        late.goto("about:blank")
        late.goto(f"{link}x")
        refusal = late.get_by_text("This link is older than an hour")
        expect(refusal).to_contain_text("`ltrain ui --port 0` prints a link")
        late.reload()
        expect(late.get_by_text("ltrain ui --port 0")).to_be_visible()
        first.close()
        second.close()
