"""MLflow: the REST API of its tracking server (version 3.5 and later).

Spans of version 3.5 and later are in the server's database; those of older traces are artifacts,
which are not read. A session, a user, and the assessments belong to the whole trace.
"""

import json
import os
from base64 import b64decode
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar

from ltrain_collector.errors import TooMuchAtOnce
from ltrain_collector.promoted_columns import KIND_NAMES
from ltrain_collector.sources import spans
from ltrain_collector.sources.servers.address import Address
from ltrain_collector.sources.servers.api import Api
from ltrain_collector.sources.servers.page import Page, Window
from ltrain_collector.sources.spans import Event, Request, Score, SpanRecord, nanoseconds

TRACES, PROJECTS = 100, 1000
"""Traces and experiments of an answer."""
ERROR = "STATUS_CODE_ERROR"
OWN = "mlflow."
KINDS = ("gen_ai.operation.name", *(name for name in KIND_NAMES if not name.startswith(OWN)))
"""Attributes of other instrumentations, whose spans MLflow translates: its own are left out."""
SESSION, USER = "mlflow.trace.session", "mlflow.trace.user"
AUTHORS = {"HUMAN": "human", "LLM_JUDGE": "llm", "AI_JUDGE": "llm", "CODE": "code"}
"""The kinds of authors by the type of an assessment's source."""
WORDS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0, "pass": 1.0, "fail": 0.0}
"""The values of words in the answers of MLflow's judges."""


class MlflowServer:
    """Reads one experiment."""

    keys: ClassVar[tuple[str, ...]] = (
        *("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
    )
    example: ClassVar[str] = "mlflow://127.0.0.1:5000/Default"

    def __init__(self, address: Address) -> None:
        self._api = Api(address, "/api", self.keys)
        self._project = address.project
        token, user, password = map(os.environ.get, self.keys)
        if token:
            self._api.set_header("Authorization", f"Bearer {token}")
        elif user and password:
            self._api.authorize(user, password)

    def projects(self) -> list[str]:
        return list(self._experiments)

    def pages(self, window: Window, cursor: str = "", read: int = 0) -> Iterator[Page]:
        location = {"experiment_id": self._experiments[self._project]}
        times = {">=": window.since, "<": window.until}
        question = {
            "locations": [{"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": location}],
            "order_by": ["timestamp_ms DESC"],
            "filter": " AND ".join(
                f"timestamp_ms {sign} {-(-time // 1_000_000)}"
                for sign, time in times.items()
                if time is not None
            ),
        }
        left = window.rest(read)
        while True:
            most = TRACES if left is None else min(TRACES, left)
            more = {"max_results": most, "page_token": cursor}
            answer = self._api.page("3.0/mlflow/traces/search", question | more, method="POST")
            infos = answer.get("traces") or []
            left = None if left is None else left - len(infos)
            cursor = "" if left == 0 else answer.get("next_page_token") or ""
            yield self._page({info["trace_id"]: info for info in infos}, cursor)
            if not cursor:
                return

    @cached_property
    def _experiments(self) -> dict[str, str]:
        """The ids of the experiments, by name."""
        found, token = dict[str, str](), ""
        while True:
            question = {"max_results": PROJECTS, "page_token": token}
            answer = self._api.post("2.0/mlflow/experiments/search", question)
            for each in answer.get("experiments") or ():
                found[each["name"]] = each["experiment_id"]
            if not (token := answer.get("next_page_token") or ""):
                return found

    def _page(self, infos: Mapping[str, dict[str, Any]], cursor: str) -> Page:
        page = Page(cursor, len(infos))
        if not infos:
            return page
        read = {each["trace_info"]["trace_id"]: each for each in self._read(list(infos))}
        for name, info in infos.items():
            page.add(
                f"trace {name}", self._trace, {"spans": (), **read.get(name, {}), "info": info}
            )
        return page

    def _read(self, names: list[str]) -> Iterator[dict[str, Any]]:
        """Yield traces with their spans, so many at once as an answer may have."""
        try:
            answer = self._api.get("3.0/mlflow/traces/batchGet", trace_ids=names)
        except TooMuchAtOnce:
            if len(names) == 1:
                raise
            for half in (names[::2], names[1::2]):
                yield from self._read(half)
            return
        yield from answer.get("traces") or ()

    def _trace(self, trace: dict[str, Any]) -> Iterator[Request]:
        info = trace["info"]
        if not trace["spans"]:
            raise ValueError("it has no spans, or has them as an artifact, as before version 3.5")
        metadata = info.get("trace_metadata") or {}
        shared = {
            "gen_ai.conversation.id": metadata.get(SESSION),
            "user.id": metadata.get(USER),
        }
        for span in trace["spans"]:
            yield spans.request(self._project, _span(span, shared))
        trace_id = _hex(trace["spans"][0]["trace_id"])
        for assessment in info.get("assessments") or ():
            if "feedback" in assessment and assessment.get("valid", True):
                yield spans.evaluation(self._project, _score(assessment, trace_id))


def _span(span: dict[str, Any], shared: Mapping[str, Any]) -> SpanRecord:
    status = span.get("status") or {}
    return SpanRecord(
        trace_id=_hex(span["trace_id"]),
        span_id=_hex(span["span_id"]),
        parent_id=_hex(span.get("parent_span_id") or ""),
        name=span["name"],
        times=(int(span["start_time_unix_nano"]), int(span["end_time_unix_nano"])),
        attributes={**_attributes(span), **shared},
        error=(status.get("message") or "error") if status.get("code") == ERROR else "",
        events=[
            Event(each["name"], int(each["time_unix_nano"]), _attributes(each))
            for each in span.get("events") or ()
        ],
    )


def _attributes(owner: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes as MLflow exports them: its own are JSON."""
    values = {
        each["key"]: _plain(each.get("value") or {}) for each in owner.get("attributes") or ()
    }
    translated = any(values.get(name) for name in KINDS)
    return {
        name: json.dumps(value, ensure_ascii=False) if name.startswith(OWN) else value
        for name, value in values.items()
        if not (translated and name.startswith(OWN))
    }


def _plain(value: dict[str, Any]) -> Any:
    """Return an OTLP value as JSON has it."""
    match value:
        case {"array_value": content}:
            return [_plain(each) for each in content.get("values") or ()]
        case {"kvlist_value": content}:
            pairs = content.get("values") or ()
            return {pair["key"]: _plain(pair.get("value") or {}) for pair in pairs}
    return next(iter(value.values()), None)


def _hex(assessment: str) -> str:
    return b64decode(assessment).hex()


def _score(assessment: dict[str, Any], trace_id: str) -> Score:
    value = assessment["feedback"].get("value")
    word = value if isinstance(value, str) else ""
    number = float(value) if isinstance(value, int | float) else WORDS.get(word.lower())
    return Score(
        trace_id=trace_id,
        judged=assessment.get("span_id") or "",
        name=assessment["assessment_name"],
        value=number,
        time=nanoseconds(assessment["last_update_time"]),
        label=word,
        note=assessment.get("rationale") or "",
        author=AUTHORS.get(assessment["source"]["source_type"], ""),
        id=assessment["assessment_id"],
    )
