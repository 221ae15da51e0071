"""Docstrings and docs avoid three constructions that a reader has to turn around."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("cli", "collector", "episodes", "instrument", "train", "transforms", "ui", "setup")
FAULTS = {
    "starts with What": re.compile(r"\A\s*What\b"),
    "says 'is no'": re.compile(r"(?<!\b[Tt]here )\bis no\b(?! longer)"),
    "ends with a preposition": re.compile(r"\b(?:of|to|for|with|from|by)\.(?:\s|$)"),
}
"""A fault of a sentence, and the text that shows it."""


def docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a module, and the literals below its names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                match statement:
                    case ast.Expr(ast.Constant(str() as text)):
                        yield text


def prose(text: str) -> str:
    """Return the text of a page without code, whose words are not ltrain's."""
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def faults(text: str) -> list[str]:
    return [fault for fault, pattern in FAULTS.items() if pattern.search(text)]


def modules() -> list[Path]:
    return [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_docstrings_are_plain() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {fault}: {' '.join(text.split())[:80]}"
        for path in modules()
        for text in docstrings(path.read_text())
        for fault in faults(prose(text))
    ]
    assert found == []


def test_docs_are_plain() -> None:
    found = [
        f"{page.relative_to(ROOT)}: {fault}: {' '.join(text.split())[:80]}"
        for page in pages()
        for text in re.split(r"\n\s*\n|\n(?=\s*[-*|] )", prose(page.read_text()))
        for fault in faults(text)
        if fault != "starts with What"
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Return the keys of a run.", []),
        ("What a run needs.", ["starts with What"]),
        ("The run, which is no wave.", ["says 'is no'"]),
        ("It is no longer served.", []),
        ("The call that a rule looks at, or is made of.", ["ends with a preposition"]),
    ],
)
def test_sentences_with_a_fault_are_found(text: str, found: list[str]) -> None:
    assert faults(text) == found
