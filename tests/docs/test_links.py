"""A link to a heading leads to a heading."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.strip().lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_to_a_heading_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\(((?!https?:)[^)#]*)#([^)]+)\)", page.read_text())
    targets = [(page.parent / path if path else page, anchor) for path, anchor in links]
    assert [f"{to.name}#{anchor}" for to, anchor in targets if anchor not in anchors(to)] == []
