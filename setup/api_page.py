"""The page with the signatures and docstrings of `import ltrain`."""

import inspect
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import ltrain

WIDTH = 96
"""Characters of a line of a signature."""
SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Source|Example):$", re.MULTILINE)
MODULES = re.compile(r"(?<![\w\"])(?:[a-z_]\w*\.)+(?=[A-Z])")
"""The modules before a name in an annotation."""


def api_lines() -> Iterator[str]:
    """Yield the paragraphs of the page."""
    yield "# Python API"
    yield (
        "The names of `import ltrain`, with the text of their docstrings. [python.md](python.md) "
        "has programs that use them."
    )
    for name in ltrain.__all__:
        member = getattr(ltrain, name)
        yield f"## {name}"
        if inspect.isclass(member):
            yield from _class_lines(member)
        else:
            yield from _function_lines(name, member)


def _class_lines(member: type) -> Iterator[str]:
    if not (member.__doc__ or "").startswith(f"{member.__name__}("):  # that of a dataclass
        yield from _docstring_lines(member)
    for name, value in _public(member):
        yield f"### {member.__name__}.{name}"
        if isinstance(value, property):
            yield from _docstring_lines(value.fget)
        else:
            yield from _function_lines(f"{member.__name__}.{name}", getattr(member, name))


def _public(member: type) -> Iterator[tuple[str, Any]]:
    """Yield the functions and properties of a class that have a docstring, in their order."""
    for name, value in vars(member).items():
        function = getattr(value, "__func__", value)
        is_member = inspect.isfunction(function) or isinstance(value, property)
        if is_member and not name.startswith("_") and inspect.getdoc(value):
            yield name, value


def _function_lines(name: str, function: Any) -> Iterator[str]:
    yield f"```text\n{_signature(name, function)}\n```"
    yield from _docstring_lines(function)


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    named = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    parameters = [each.replace(default=_Default.of(each.default)) for each in named]
    line = _plain(f"{name}{signature.replace(parameters=parameters)}")
    if len(line) <= WIDTH:
        return line
    returned = _plain(str(signature.replace(parameters=[])).removeprefix("()"))
    parts = "".join(f"    {part},\n" for part in _parameters(parameters))
    return f"{name}(\n{parts}){returned}"


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Yield each parameter, and `*` before the first that has to be named."""
    keyword_only = False
    for each in parameters:
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        yield _plain(str(each))


def _plain(text: str) -> str:
    """Return a signature whose names have no modules."""
    return MODULES.sub("", text)


class _Default(str):
    """A default value as the reader writes it."""

    @classmethod
    def of(cls, value: Any) -> Any:
        if inspect.isfunction(value):
            return cls(value.__name__)
        return cls(f'Path("{value}")') if isinstance(value, PurePath) else value

    def __repr__(self) -> str:
        return str(self)


def _docstring_lines(member: Any) -> Iterator[str]:
    """Yield the paragraphs of a docstring; entries of its sections become lists."""
    own = vars(member).get("__doc__") if inspect.isclass(member) else member.__doc__
    text = inspect.cleandoc(own or "")
    parts = SECTION.split(text)
    yield from (" ".join(each.split()) for each in parts[0].split("\n\n") if each.strip())
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        yield f"**{title}**"
        yield "\n".join(_entries(inspect.cleandoc(body)))


def _entries(body: str) -> Iterator[str]:
    """Yield a list item for each entry `name: text`; a text without a name stays as it is."""
    entries = re.split(r"\n(?=\S)", body)
    for entry in entries:
        name, colon, text = entry.partition(": ")
        if colon and re.fullmatch(r"\*{0,2}\w+", name):
            yield f"- `{name}`: {' '.join(text.split())}"
        else:
            yield " ".join(entry.split())
