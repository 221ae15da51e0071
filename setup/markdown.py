"""Pages and tables in Markdown."""

from collections.abc import Iterable, Sequence


def page(source: str, lines: Iterable[str]) -> str:
    """Join paragraphs below a comment that names their source."""
    head = f"<!-- Made from {source} by `make docs`; make changes there. -->\n"
    return head + "".join(f"\n{line}\n" for line in lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in body)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
