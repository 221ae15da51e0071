"""Pages and tables in Markdown."""

from collections.abc import Iterable, Sequence


def page(source: str, lines: Iterable[str]) -> str:
    """Join paragraphs below a comment that names their source."""
    head = f"<!-- Made from {source} by `make docs`; make changes there. -->\n"
    return head + "".join(f"\n{line}\n" for line in lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in body)


def mark(name: str, command: str) -> str:
    """Return the line above a generated part of a page; `<!-- end -->` is below it."""
    return f"<!-- {name}: made by `{command}` -->\n"


def replace_part(text: str, start: str, made: str) -> str:
    """Return a page with `made` between the mark `start` and its end; people write the rest."""
    before, _, after = text.partition(start)
    return f"{before}{start}{made}\n{after[after.index('<!-- end -->') :]}"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
