"""A line of prose is short, or it is one sentence, so that a reader and a diff see it at once."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 100
"""Characters of a line that holds more than one sentence."""
GENERATED = "<!-- Made from"
"""In the first lines of a page that `make docs` writes."""

FENCE = re.compile(r"\s*```")
NO_PROSE = re.compile(r"\s*(\||#|<|\[[^\]]*\]\([^)]*\)$|https?:\S+$)")
"""Tables, headings, HTML, and a link that fills its line."""
NEXT_SENTENCE = re.compile(r"[.!?][)\"'*`]*\s+[\"'(*`\[]*[A-Z]")
"""The end of a sentence and the beginning of another."""


def pages() -> list[Path]:
    """Return the pages that people write."""
    every = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if GENERATED not in page.read_text()[:400]]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of prose with their numbers, from 1."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            in_code = not in_code
        elif not in_code and not NO_PROSE.match(line):
            yield number, line


def too_long(text: str) -> list[int]:
    """Return the numbers of the lines that are long and hold several sentences."""
    return [
        number for number, line in prose(text) if len(line) > LONGEST and NEXT_SENTENCE.search(line)
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_line_of_prose_is_short_or_one_sentence(page: Path) -> None:
    assert too_long(page.read_text()) == []


def test_generated_pages_are_left_out() -> None:
    names = {page.name for page in pages()}
    assert {"README.md", "CONTRIBUTING.md", "rules.md"} <= names
    assert not names & {"api.md", "attributes.md", "commands.md", "completeness.md", "recipe.md"}
    assert not names & {"instrumentors.md", "process.md", "settings.md", "tables.md"}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("One sentence. Another.", []),
        ("word " * 30, []),
        ("word " * 15 + "end. Then " + "word " * 15, [1]),
        ("```\n" + "word. Word " * 30 + "\n```", []),
        ("| " + "word. Word " * 30 + " |", []),
        ("# " + "word. Word " * 30, []),
    ],
)
def test_what_is_too_long(text: str, lines: list[int]) -> None:
    assert too_long(text) == lines
