"""The code blocks of README.md, CONTRIBUTING.md, docs/ and the READMEs of the examples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PATTERNS = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/*/README.md")
PAGES = sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern))


@dataclass(frozen=True)
class Block:
    """A fence, or with the language `indented` an indented code block."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> Iterator[str]:
        """Yield the shell commands: in `console` the lines after `$`, in `bash` every line."""
        for line in self.text.replace("\\\n", " ").splitlines():
            command = line.strip()
            if self.language == "console" and not command.startswith("$ "):
                continue
            if command and not command.startswith("#"):
                yield command.removeprefix("$ ")


def read_blocks(page: Path, text: str) -> list[Block]:
    """Return the code blocks of a page, those inside lists and quotes too."""
    return [
        Block(
            page,
            token.map[0] + 1,
            token.info.strip() if token.type == "fence" else "indented",
            token.content,
        )
        for token in MarkdownIt().parse(text)
        if token.type in ("fence", "code_block") and token.map
    ]


BLOCKS = [block for page in PAGES for block in read_blocks(page, page.read_text())]


def parametrize(
    *languages: str, where: Callable[[Block], object] = lambda block: True
) -> pytest.MarkDecorator:
    """Return a decorator that runs a test once for each block in the languages, if `where`."""
    chosen = [block for block in BLOCKS if block.language in languages and where(block)]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: block.id)
