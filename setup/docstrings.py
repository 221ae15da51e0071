"""The string literals below names, which document constants and fields."""

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType


def name_docs(module: ModuleType) -> dict[str, str]:
    """Return the literal below each name; names in a class are `Class.name`."""
    assert module.__file__ is not None  # only namespace packages have none
    tree = ast.parse(Path(module.__file__).read_text())
    docs = dict(_pairs(tree.body))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            docs |= {f"{node.name}.{name}": text for name, text in _pairs(node.body)}
    return docs


def _pairs(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, following in pairwise(body):
        name = _name(statement)
        match following:
            case ast.Expr(ast.Constant(str() as text)) if name:
                yield name, " ".join(text.split())


def _name(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
            return name
    return None
