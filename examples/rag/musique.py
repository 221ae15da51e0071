"""Questions in MuSiQue's JSONL format, and pages: JSON objects with a `title` and a `text`."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOPS = {1: "one_hop", 2: "two_hop", 3: "three_hop", 4: "four_hop"}
"""The domain of a question by the number of its steps."""

_NAMES = {str: "a text", bool: "true or false", int: "a number", list: "a list", dict: "an object"}


class BadData(ValueError):
    """A file of questions or pages that cannot be read; the message names line and field."""


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    idx: int
    title: str
    text: str
    is_supporting: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One hop: a question in which `#1` is the answer of the first hop."""

    id: int
    question: str
    answer: str
    support: int | None
    """The `idx` of the paragraph that has the answer."""


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    question: str
    paragraphs: tuple[Paragraph, ...]
    steps: tuple[Step, ...]
    answer: str
    aliases: tuple[str, ...]
    answerable: bool

    @property
    def domain(self) -> str:
        return HOPS.get(len(self.steps), "more_hops")

    @property
    def pages(self) -> list[Page]:
        return [Page(paragraph.title, paragraph.text) for paragraph in self.paragraphs]

    def as_task(self) -> dict[str, Any]:
        """Return the line of MuSiQue, with the `input` and the `domain` of a task of ltrain."""
        return {
            "id": self.id,
            "input": self.question,
            "domain": self.domain,
            "paragraphs": [
                {
                    "idx": paragraph.idx,
                    "title": paragraph.title,
                    "paragraph_text": paragraph.text,
                    "is_supporting": paragraph.is_supporting,
                }
                for paragraph in self.paragraphs
            ],
            "question": self.question,
            "question_decomposition": [
                {
                    "id": step.id,
                    "question": step.question,
                    "answer": step.answer,
                    "paragraph_support_idx": step.support,
                }
                for step in self.steps
            ],
            "answer": self.answer,
            "answer_aliases": list(self.aliases),
            "answerable": self.answerable,
        }


def load_questions(path: Path) -> list[Question]:
    """Read the questions of a file.

    Raises:
        BadData: with the line and the field that are wrong.
    """
    questions = [_question(fields) for fields in _read(path)]
    if not questions:
        raise BadData(f"{path} has no questions. Name a JSONL file in MuSiQue's format.")
    return questions


def load_pages(path: Path) -> list[Page]:
    """Read the pages of a file.

    Raises:
        BadData: with the line and the field that are wrong, also if there is no page.
    """
    pages = [Page(fields.get("title", str), fields.get("text", str)) for fields in _read(path)]
    if not pages:
        raise BadData(
            f"{path} has no pages, so there is nothing to search. Write it with `python tasks.py`, "
            'or name a JSONL file of {"title": "...", "text": "..."} with RAG_PAGES.'
        )
    return pages


def pages_of(questions: Iterable[Question]) -> list[Page]:
    """Return the pages of all questions, each once, in their order."""
    return list(dict.fromkeys(page for question in questions for page in question.pages))


@dataclass(frozen=True, slots=True)
class _Fields:
    """An object of a line, and where it is: for sentences about its fields."""

    values: dict[str, Any]
    path: Path
    line: int
    prefix: str = ""

    def get(self, name: str, kind: type) -> Any:
        """Return a field, which must be of a type."""
        if name not in self.values:
            raise self.fault(name, "is missing")
        value = self.values[name]
        # bool is a subclass of int, and true is no index of a paragraph
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.fault(name, f"is {json.dumps(value)[:40]}, not {_NAMES[kind]}")
        return value

    def objects(self, name: str) -> Iterator["_Fields"]:
        """Yield the objects of a field that is a list of them."""
        for place, value in enumerate(self.get(name, list)):
            where = f"{self.prefix}{name}[{place}]"
            if not isinstance(value, dict):
                raise self.fault(f"{name}[{place}]", "is not an object")
            yield _Fields(value, self.path, self.line, f"{where}.")

    def fault(self, name: str, problem: str) -> BadData:
        field = f"{self.prefix}{name}"
        return BadData(f"{self.path}, line {self.line}: the field `{field}` {problem}.")


def _read(path: Path) -> Iterator[_Fields]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _Fields(_object(path, number, line), path, number)
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"Cannot read {path}: {error}. Name a JSONL file.") from error


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadData(f"{path}, line {number}: {error}. A line is one JSON object.") from error
    if not isinstance(values, dict):
        raise BadData(f"{path}, line {number} is not an object. A line is one JSON object.")
    return values


def _question(fields: _Fields) -> Question:
    aliases = fields.get("answer_aliases", list)
    if not all(isinstance(alias, str) for alias in aliases):
        raise fields.fault("answer_aliases", "has an alias that is not a text")
    return Question(
        id=fields.get("id", str),
        question=fields.get("question", str),
        paragraphs=tuple(
            Paragraph(
                each.get("idx", int),
                each.get("title", str),
                each.get("paragraph_text", str),
                each.get("is_supporting", bool),
            )
            for each in fields.objects("paragraphs")
        ),
        steps=tuple(map(_step, fields.objects("question_decomposition"))),
        answer=fields.get("answer", str),
        aliases=tuple(aliases),
        answerable=fields.get("answerable", bool),
    )


def _step(fields: _Fields) -> Step:
    # null where a question is not answerable
    support = fields.values.get("paragraph_support_idx")
    return Step(
        fields.get("id", int),
        fields.get("question", str),
        fields.get("answer", str),
        None if support is None else fields.get("paragraph_support_idx", int),
    )
