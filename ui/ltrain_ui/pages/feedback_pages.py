"""Feedback by hand: the queue, the form on the page of an execution, and what stores it."""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlencode

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ltrain_collector.admin import read_lines
from ltrain_collector.errors import BadFeedback
from ltrain_collector.feedback import (
    Feedback,
    StoredFeedback,
    count_ratings,
    list_feedback,
    read_ratings,
    save_feedback,
)
from ltrain_collector.store import Store
from ltrain_instrument.feedback import TARGET_KINDS, TRACE_ID, Target, TargetKind
from ltrain_transforms.reports import Kind, Reference
from ltrain_transforms.show import RolloutTree
from ltrain_ui.addresses import address_of
from ltrain_ui.listing import QUEUE, ListQuery, next_unrated
from ltrain_ui.pages.renderer import Renderer
from ltrain_ui.sessions import CURRENT
from ltrain_ui.sources import Sources

MAX_FORM_BYTES = 64 << 10
"""Bytes of a form: a note of 10,000 characters has up to 40,000."""
MAX_FIELDS = 20
MOST_LEFT = 200
"""Executions without a rating that are counted."""
SPAN_ID = re.compile("[0-9a-f]{16}")
DEFAULT_NAME = "reward"
"""The name of feedback on a page that was not opened from a queue, as in `ltrain reward`."""


class FeedbackForm(BaseModel):
    """The fields of the form, as a browser sends them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["rollout", "trace", "session"]
    execution: Annotated[str, Field(min_length=1, max_length=500)]
    call: str | None = None
    """The id of a span of the judged call,"""
    trace: str | None = None
    """and its trace."""
    name: str
    number: Annotated[str, Field(max_length=40)] = ""
    """The text of the value field; a thumb comes before it."""
    thumb: Literal["0", "1"] | None = None
    note: str = ""
    withdraw: Literal["yes"] | None = None
    token: Annotated[str, Field(min_length=1, max_length=100)]
    """Made for each page: a form that is sent twice is stored once."""
    list: Annotated[str, Field(max_length=5000)] = ""
    """The filter of the list from which the page was opened."""
    anchor: Annotated[str, Field(pattern="^a[0-9]{1,9}c[0-9]{1,9}$")] | None = None
    """The place on the page."""

    def feedback(self) -> Feedback:
        """Return the stored feedback."""
        target = {"trace": self.trace, "call": self.call} if self.call else self._execution()
        return Feedback.model_validate(
            {
                **target,
                "name": self.name.strip(),
                "value": self._value(),
                "comment": self.note.strip() or None,
                "withdrawn": self.withdraw is not None,
                "id": self.token,
            }
        )

    @property
    def query(self) -> ListQuery:
        """The list from which the page was opened."""
        return ListQuery.parse_text(self.list)

    @property
    def is_rating(self) -> bool:
        """Whether it rates the whole execution."""
        return not self.call and not self.withdraw and self._value() is not None

    def page(self) -> str:
        """Return the address of the page that the form was on."""
        page = self.query.page(Reference(Kind(self.kind), self.execution))
        return f"{page}#{self.anchor}" if self.anchor else page

    def _execution(self) -> dict[str, str]:
        return {self.kind: self.execution}

    def _value(self) -> str | None:
        typed = self.number.strip().replace(",", ".")
        return None if self.withdraw else self.thumb or typed or None


@dataclass(frozen=True, slots=True)
class Form:
    """The form of an execution, or of one of its calls."""

    kind: TargetKind
    execution: str
    name: str
    entries: Sequence[StoredFeedback]
    """The stored feedback, the latest first."""
    call: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Queue:
    """Where a person is in a queue of executions without a rating."""

    name: str
    rated: int
    """Executions that this person has rated under the name."""
    left: str
    """The number of those without a rating, as text."""
    skip: str | None
    """The address of the next execution; None: this is the last one."""
    undo: tuple[str, str] | None
    """Kind and id of the execution that was rated last, and can be taken back."""
    rubric: str
    """The rubric of the recipe's judge under this name; '' if there is none."""


@dataclass(frozen=True, slots=True)
class PageFeedback:
    """The forms of a page, and the feedback by hand that is stored for it."""

    target: Target
    name: str
    entries: Sequence[StoredFeedback]
    token: str
    list: str
    queue: "Queue | None" = None

    def form(self, call: Mapping[str, Any] | None) -> Form | None:
        """Return the form of a call, a row of `calls`; None: of the whole execution."""
        target = self.target
        if call is None:
            own = [one for one in self.entries if not one.call]
            return Form(target.kind, target.id, self.name, own)
        span, trace = str(call["call_id"]), str(call["trace_id"])
        if not SPAN_ID.fullmatch(span) or not TRACE_ID.fullmatch(trace):
            return None  # an id that OpenTelemetry does not allow cannot be a parent
        spans = {span, *(call["source_spans"] or ())}
        own = [one for one in self.entries if one.call in spans]
        return Form(target.kind, target.id, self.name, own, span, trace)


class FeedbackPages:
    """Thumbs, values, notes and withdrawals of the person who has signed in."""

    section = "Feedback"
    """The section of the navigation."""

    def __init__(self, sources: Sources, renderer: Renderer) -> None:
        self._sources = sources
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return the addresses and their functions."""
        return [
            Route("/feedback", self.save, methods=["POST"]),
            Route("/feedback", self.overview, methods=["GET"]),
        ]

    def overview(self, request: Request) -> Response:
        """Show what is to be rated under a name, who has rated, and where others disagree."""
        values = {name: request.query_params.get(name, "").strip() for name in ("run", "mode")}
        name = request.query_params.get("unrated", "").strip() or DEFAULT_NAME
        query = ListQuery.parse({**values, "unrated": name, QUEUE: "yes"})
        ratings = self._sources.read(lambda store: read_ratings(store, name))
        lines = self._sources.read(lambda store: read_lines(store, query.filter, MOST_LEFT + 1))
        return self._renderer.page(
            "queue.html.j2",
            title="Feedback",
            name=name,
            fields=[("unrated", name), *values.items()],
            left=_at_most(len(lines)),
            first=query.item(lines[0]) if lines else None,
            ratings=ratings,
            rubric=_rubric(self._sources, name),
            address=lambda one: address_of(
                Reference(Kind.ROLLOUT if one.is_rollout else Kind.TRACE, one.unit)
            ),
        )

    async def save(self, request: Request) -> Response:
        """Store feedback, and show the page that it was given on, again by GET."""
        form = parse_form(await _read_body(request))
        feedback, page, person = _checked(form), form.page(), CURRENT.get().person

        def save(store: Store) -> str:
            save_feedback(store, feedback, person)
            return _after_rating(store, form) if form.query.is_queue and form.is_rating else page

        return RedirectResponse(await run_in_threadpool(self._sources.read, save), 303)


def _after_rating(store: Store, form: FeedbackForm) -> str:
    """Return the address of the next execution of a queue; of the overview after the last one."""
    rated = urlencode({"rated": f"{form.kind}:{form.execution}"})
    following = next_unrated(store, form.query, form.execution)
    if following is None:
        return f"/feedback?{urlencode({'unrated': form.query.values['unrated']})}"
    return f"{following}&{rated}"


def page_feedback(
    sources: Sources, query: ListQuery, shown: RolloutTree, rated: str = ""
) -> PageFeedback:
    """Return the forms of the page of an execution.

    Args:
        rated: kind and id of the execution that was rated before this one in a queue.
    """
    kind = next(one for one in TARGET_KINDS if one == shown.kind)
    target = Target(kind, shown.rollout)
    entries = sources.read(lambda store: list_feedback(store, target))
    name = query.values.get("unrated", DEFAULT_NAME)
    queue = _queue(sources, query, shown.rollout, rated) if query.is_queue else None
    token = secrets.token_urlsafe(16)
    return PageFeedback(target, name, entries, token, urlencode(query.values), queue)


def _queue(sources: Sources, query: ListQuery, unit: str, rated: str) -> Queue:
    name, person = query.values["unrated"], CURRENT.get().person
    kind, _, last = rated.partition(":")

    def read(store: Store) -> Queue:
        done = count_ratings(store, name).get(person, 0)
        left = _at_most(len(read_lines(store, query.filter, MOST_LEFT + 1)))
        undo = (kind, last) if kind in TARGET_KINDS and last else None
        skip = next_unrated(store, query, unit)
        return Queue(name, done, left, skip, undo, _rubric(sources, name))

    return sources.read(read)


def _rubric(sources: Sources, name: str) -> str:
    """Return the rubric of the recipe's judge under a name; '' if it has none."""
    recipe, _ = sources.load_recipe()
    judge = recipe.judges.get(name)
    return "" if judge is None else judge.rubric


def _at_most(count: int) -> str:
    return f"more than {MOST_LEFT}" if count > MOST_LEFT else f"{count:,}"


def parse_form(body: bytes) -> FeedbackForm:
    """Parse a form as browsers encode it."""
    try:
        fields = parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
        return FeedbackForm.model_validate(dict(fields))
    except ValidationError as error:
        raise BadFeedback(f"This is not the form of a page: {_sentence(error)}.") from error
    except ValueError as error:
        raise BadFeedback(f"This is not the form of a page: {error}.") from error


def _checked(form: FeedbackForm) -> Feedback:
    try:
        return form.feedback()
    except ValidationError as error:
        if form.withdraw is None and form.thumb is None and not form.number and not form.note:
            raise BadFeedback("There is nothing to save. Type a value or a note.") from error
        raise BadFeedback(f"The feedback is not saved: {_sentence(error)}.") from error


def _sentence(error: ValidationError) -> str:
    """Return the first fault, with the name of the field in the form."""
    fault = error.errors(include_url=False)[0]
    message = str(fault["msg"]).removeprefix("Value error, ").rstrip(".")
    return ": ".join((*map(str, fault["loc"]), message))


async def _read_body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise BadFeedback(
                f"The form has more than {MAX_FORM_BYTES >> 10} KiB. Shorten the note."
            )
    return body
