"""Feedback by hand: the form on the page of an execution, and the address that stores it."""

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

from ltrain_collector.errors import BadFeedback
from ltrain_collector.feedback import Feedback, StoredFeedback, list_feedback, save_feedback
from ltrain_instrument.feedback import TARGET_KINDS, TRACE_ID, Target, TargetKind
from ltrain_transforms.reports import Kind, Reference
from ltrain_transforms.show import RolloutTree
from ltrain_ui.listing import ListQuery
from ltrain_ui.pages.renderer import Renderer
from ltrain_ui.sessions import CURRENT
from ltrain_ui.sources import Sources

MAX_FORM_BYTES = 64 << 10
"""Bytes of a form: a note of 10,000 characters has up to 40,000."""
MAX_FIELDS = 20
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

    def page(self) -> str:
        """Return the address of the page that the form was on."""
        query = ListQuery.parse_text(self.list)
        page = query.page(Reference(Kind(self.kind), self.execution))
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
class PageFeedback:
    """The forms of a page, and the feedback by hand that is stored for it."""

    target: Target
    name: str
    entries: Sequence[StoredFeedback]
    token: str
    list: str

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
        return [Route("/feedback", self.save, methods=["POST"])]

    async def save(self, request: Request) -> Response:
        """Store feedback, and show the page that it was given on, again by GET."""
        form = parse_form(await _read_body(request))
        feedback, page, person = _checked(form), form.page(), CURRENT.get().person
        await run_in_threadpool(
            self._sources.read, lambda store: save_feedback(store, feedback, person)
        )
        return RedirectResponse(page, 303)


def page_feedback(sources: Sources, query: ListQuery, shown: RolloutTree) -> PageFeedback:
    """Return the forms of the page of an execution."""
    kind = next(one for one in TARGET_KINDS if one == shown.kind)
    target = Target(kind, shown.rollout)
    entries = sources.read(lambda store: list_feedback(store, target))
    name = query.values.get("unrated", DEFAULT_NAME)
    return PageFeedback(target, name, entries, secrets.token_urlsafe(16), urlencode(query.values))


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
