"""LangSmith: its API of runs and feedback; `langsmith:///project` is LangChain's own server."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from ltrain_collector.sources import spans
from ltrain_collector.sources.langsmith import SERVICE, LangSmithRuns
from ltrain_collector.sources.servers.address import Address
from ltrain_collector.sources.servers.api import Api
from ltrain_collector.sources.servers.page import ENTRIES, Page, Window, iso
from ltrain_collector.sources.spans import Request, Score, hex_id, nanoseconds

OWN = "https://api.smith.langchain.com"
FIELDS = (
    *("id", "trace_id", "parent_run_id", "name", "run_type", "start_time", "end_time", "error"),
    *("inputs", "outputs", "extra", "prompt_tokens", "completion_tokens"),
)
AUTHORS = {"app": "human", "api": "code", "model": "llm", "auto_eval": "llm"}
"""The kinds of authors by the type of a feedback's source."""


class LangSmithServer:
    """Reads one project."""

    keys: ClassVar[tuple[str, ...]] = ("LANGSMITH_API_KEY",)
    example: ClassVar[str] = "langsmith:///my-project"

    def __init__(self, address: Address) -> None:
        self._api = Api(replace(address, url=address.url or OWN), "", self.keys)
        self._api.set_header("x-api-key", os.environ.get(self.keys[0], ""))
        self._project = address.project
        self._reader = LangSmithRuns(0)

    def projects(self) -> list[str]:
        return list(self._sessions)

    def pages(self, window: Window, cursor: str = "", read: int = 0) -> Iterator[Page]:
        question = self._question(window)
        if window.limit is not None:
            question = self._question(replace(window, since=self._newest(question, window)))
        while True:
            place = {"cursor": cursor} if cursor else {}
            answer = self._api.page("runs/query", question | place, method="POST")
            runs = answer.get("runs") or []
            cursor = (answer.get("cursors") or {}).get("next") or ""
            page = Page(cursor, sum(run.get("parent_run_id") is None for run in runs))
            traces = {run["id"]: run for run in runs}
            for run in runs:
                page.add(f"run {run['id']}", self._reader.add, run)
            for feedback in self._feedback(list(traces)):
                run = traces[feedback["run_id"]]
                page.add(f"feedback {feedback['id']}", _evaluation, feedback | {"run": run})
            yield page
            if not cursor:
                return

    @cached_property
    def _sessions(self) -> dict[str, str]:
        """The ids of the projects, by name."""
        found: dict[str, str] = {}
        while True:
            some = self._api.get("sessions", limit=ENTRIES, offset=len(found))
            found |= {each["name"]: each["id"] for each in some}
            if len(some) < ENTRIES:
                return found

    def _question(self, window: Window) -> dict[str, Any]:
        question: dict[str, Any] = {
            "session": [self._sessions[self._project]],
            "select": FIELDS,
            "limit": ENTRIES,
        }
        if window.since is not None:
            question["start_time"] = iso(window.since)
        if window.until is not None:
            question["filter"] = f'lt(start_time, "{iso(window.until)}")'
        return question

    def _newest(self, question: dict[str, Any], window: Window) -> int | None:
        """Return when the oldest one of so many traces as the limit of a window began."""
        begin, left = window.since, window.limit or 0
        question |= {"is_root": True, "select": ("id", "start_time")}
        while left > 0:
            answer = self._api.post("runs/query", question)
            for run in answer["runs"][:left]:
                begin = nanoseconds(run["start_time"])
            left -= len(answer["runs"])
            cursor = (answer.get("cursors") or {}).get("next")
            if not cursor:
                return begin if left <= 0 else window.since
            question["cursor"] = cursor
        return begin

    def _feedback(self, runs: list[str]) -> Iterator[dict[str, Any]]:
        read = 0
        while runs:
            some = self._api.get("feedback", run=runs, limit=ENTRIES, offset=read)
            yield from some
            read += len(some)
            if len(some) < ENTRIES:
                return


def _evaluation(feedback: dict[str, Any]) -> Iterator[Request]:
    run, value = feedback["run"], feedback.get("score")
    text = feedback.get("value")
    score = Score(
        trace_id=hex_id(run["trace_id"], 32),
        judged=hex_id(run["id"], 16) if run.get("parent_run_id") else "",
        name=feedback["key"],
        value=float(value) if isinstance(value, int | float) else None,
        time=nanoseconds(feedback["modified_at"]),
        label=text if isinstance(text, str) else "",
        note=feedback.get("comment") or "",
        author=AUTHORS.get((feedback.get("feedback_source") or {}).get("type") or "", ""),
        id=feedback["id"],
    )
    yield spans.evaluation(SERVICE, score)
