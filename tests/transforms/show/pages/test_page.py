"""The HTML pages as a browser parses them: complete, self-contained and safe with any trace."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_instrument.machine import visible
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.reports.report import Chart, Facts, Grid, Report
from ltrain_transforms.show import look_up, render_page, write_page

EVIL = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\"' onmouseover=alert(3) <a href='javascript:alert(4)'>{{ 7*7 }}</pre></details>&lt;"
)
VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Collects every tag with its attributes, and the text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes what is not open"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


@pytest.fixture
def shown(scene: Any, recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that stores the scene and returns the page of an id."""
    monkeypatch.chdir(recipe_file.parent)

    def of(identifier: str) -> str:
        with open_empty_store(recipe_file.parent / "store") as store:
            insert_otlp(store, scene.request())
        dsn = f"chdb://{recipe_file.parent}/store"
        found = look_up(identifier, home=recipe_file.parent / ".ltrain", dsn=dsn)
        write_page(found, Path("page.html"))
        return Path("page.html").read_text()

    return of


def two(scene: Any) -> Any:
    """Add a group of two rollouts: the query of the first fails, and one answer is dropped."""
    for sample in range(2):
        rollout = scene.attempt("t1", sample)
        rollout.dispatch()
        rollout.llm("write", text="SELECT name", state={"question": "who sings?"})
        rollout.tool(error="boom()" if sample == 0 else "", state={"query": "SELECT"})
        rollout.llm("rewrite", text="SELECT again", ids=False)
        rollout.emit("POST", "httpx", {}, named=False)
        rollout.evaluate(float(sample))
        rollout.close()
    return scene.attempts[0]


def test_every_call_reward_credit_and_drop_is_on_the_page(
    scene: Any, shown: Callable[..., str]
) -> None:
    rollout = two(scene)
    parsed = Page(shown(rollout.rollout))
    assert parsed.open == []
    details = [attributes for tag, attributes in parsed.tags if tag == "details"]
    calls = [attributes for attributes in details if "call" in str(attributes["class"])]
    assert [attributes["id"] for attributes in calls] == [f"a1c{seq}" for seq in range(6)]
    for text in (
        f"rollout {rollout.rollout}",
        "run demo, mode train, wave 0, task t1, sample 0, domain db",
        "outcome reward 0; its group of 2: mean 0.500",
        "reward answer +0.000 (runner; evidence span",
        "tool-failed -0.200 (rule; evidence #3 execute_query)",
        "return -0.200; 2 tokens in row 1",
        "rows/no_tokens: its token ids are missing",
        "Other spans: 1, which describe no call.",
        "error: boom",
        "who sings?",
        "Judged by ltrain.toml.",
    ):
        assert text in parsed.text
    bars = re.findall(r"(outcome|process|advantage)\s+([-+][\d.]+)", parsed.text)
    assert ("outcome", "-0.707") in bars and ("process", "-0.100") in bars
    assert ("advantage", "-0.807") in bars


def test_a_hostile_trace_is_text(scene: Any, shown: Callable[..., str]) -> None:
    hostile = scene.attempt(f"t{EVIL}", 0)
    hostile.dispatch()
    hostile.llm(f"write{EVIL}", text=EVIL, tool_calls=[{"name": EVIL, "arguments": {EVIL: EVIL}}])
    hostile.tool(EVIL, result=EVIL * 20, arguments=json.dumps(EVIL), state={EVIL: EVIL})
    hostile.tool("fails", error=EVIL)
    hostile.evaluate(1.0, name=EVIL)
    hostile.close()
    text = shown(hostile.rollout)
    parsed = Page(text)
    assert parsed.open == []
    assert text.count(EVIL) == 0
    assert parsed.text.count("</script><script>alert(1)</script>") > 5
    assert [tag for tag, _ in parsed.tags].count("script") == 1
    harmless(parsed)


def harmless(parsed: Page) -> None:
    """Check that nothing is loaded, only the page's script runs, and traces add no markup."""
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"img", "link", "iframe", "object", "embed", "form", "base", "audio"}
    for tag, attributes in parsed.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "style", "srcset", "action", "data"), (tag, name)
            assert name != "href" or str(value).startswith("#a")
    policies = [
        str(attributes["content"])
        for _, attributes in parsed.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policies[0]


def test_the_policy_allows_only_the_own_style_and_script(
    scene: Any, shown: Callable[..., str]
) -> None:
    from base64 import b64encode
    from hashlib import sha256

    text = shown(two(scene).rollout)
    for tag in ("style", "script"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = b64encode(sha256(body.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in text
    assert not re.search(r"(?:https?:)?//\w", text), "an address outside"


def test_control_characters_are_visible(scene: Any, shown: Callable[..., str]) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.dispatch()
    rollout.llm("write", text="\x1b[2J\u202eevil 😀")
    rollout.close()
    text = shown(rollout.rollout)
    assert "\x1b" not in text and "\u202e" not in text
    assert "\\u001b[2J\\u202eevil 😀" in Page(text).text
    assert visible("half \ud83d, whole 😀\t\n") == "half \\ud83d, whole 😀\t\n"


def test_a_history_is_shown_once_and_long_texts_are_folded(
    scene: Any, shown: Callable[..., str]
) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.dispatch()
    rollout.llm("write", text="first " * 400)
    rollout.llm("write", text="x" * 30_000)
    rollout.close()
    parsed = Page(shown(rollout.rollout))
    assert "It begins with 1 message of #1 sql." in parsed.text
    assert ("a", {"href": "#a1c1"}) in parsed.tags
    assert "10,000 more characters are not on this page" in parsed.text
    assert sum(attributes.get("class") == "fold" for _, attributes in parsed.tags) >= 2


def test_json_is_indented_and_a_state_shows_its_change(
    scene: Any, shown: Callable[..., str]
) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.dispatch()
    rollout.tool(result='{"rows":[1]}', state={"plan": "read the table"})
    rollout.tool(result="", state={"plan": "read the index"})
    rollout.close()
    page = Page(shown(rollout.rollout))
    assert '{\n  "rows": [\n    1\n  ]\n}' in page.text
    assert [tag for tag, _ in page.tags if tag in ("del", "ins")] == ["del", "ins"]


def test_a_chart_has_axes_lines_and_a_legend() -> None:
    series = (("up <b>", ((0.0, 0.25), (1.0, float("nan")), (2.0, 0.5), (3.0, 0.75))), ("flat", ()))
    chart = Chart("Reward & co", "wave", "mean", series)
    grid = Grid("Numbers", ("wave", "what"), ((0, "<i>"), (1, None)))
    text = render_page(Report("run <x>", "", (Facts("Run", (("a", "<b>"),)), chart, grid), {}))
    parsed = Page(text)
    harmless(parsed)
    assert [tag for tag, _ in parsed.tags].count("circle") == 3
    assert [tag for tag, _ in parsed.tags].count("polyline") == 1
    for text in ("run <x>", "Reward & co", "wave", "mean", "up <b>", "0.75", "<i>"):
        assert text in parsed.text


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NothingToShow, match=r"cannot be written to .*No such file"):
        write_page(Report("t", "", (), {}), tmp_path / "absent" / "page.html")


def test_the_page_of_a_rollout_has_its_task_and_result(
    scene: Any, shown: Callable[..., str]
) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.dispatch()
    rollout.spans[-1].attributes["ltrain.task.input"] = '"How many?"'
    rollout.llm("write")
    rollout.close()
    recorded = {"ltrain.task.fields": json.dumps({"gold": EVIL}), "ltrain.rollout.result": '"7"'}
    rollout.spans[-1].attributes.update(recorded)
    page = Page(shown(f"rollout:{rollout.rollout}"))
    for text in ("task input", "How many?", "task gold", visible(EVIL), "result", "7"):
        assert text in page.text
    assert not [tag for tag, _ in page.tags if tag == "img"]


class CountedGrid(Grid):
    """A table that counts how often its page reads all its rows for the alignment of a column."""

    reads = 0

    @property
    def numeric(self) -> tuple[bool, ...]:
        CountedGrid.reads += 1
        return super().numeric


def test_a_page_reads_the_rows_of_a_table_for_its_alignment_once() -> None:
    rows = tuple((f"t{number}", number) for number in range(200))
    page = Page(render_page(Report("r", "", (CountedGrid("groups", ("task", "count"), rows),), {})))
    cells = [attributes for tag, attributes in page.tags if tag == "td"]
    assert [cell.get("class") for cell in cells] == [None, "right"] * 200
    assert CountedGrid.reads == 1
