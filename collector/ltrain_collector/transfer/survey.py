"""The counts of `ltrain import --dry-run`: traces, kinds of spans, token ids, scores."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ltrain_collector.access import UNLIMITED
from ltrain_collector.errors import BadRequest, OtlpError
from ltrain_collector.promoted_columns import KIND_NAMES
from ltrain_collector.signals import TRACES, value_text
from ltrain_collector.transfer.documents import Document
from ltrain_collector.transfer.importing import ImportCounts, parse_document
from ltrain_instrument import attributes

KINDS = ("gen_ai.operation.name", *KIND_NAMES)
SCORED = (
    *("annotations.", "trace.annotations.", "session.annotations."),
    *("evaluations.", "trace.evaluations.", "session.evaluations.", "agentlightning.reward."),
)
"""The beginnings of the names of attributes with scores."""

SHOWN = 20
"""Agents and scores of a report."""


class Survey:
    """Counts the records of a source."""

    def __init__(self) -> None:
        self._records, self._kinds = Counter[str](), Counter[str]()
        self._scores, self._agents = Counter[str](), Counter[str]()
        self._traces, self._with_tokens = set[bytes](), set[bytes]()

    def add(self, documents: Iterable[Document], counts: ImportCounts) -> None:
        """Count the records of documents; `counts` has those that cannot be read."""
        for document in documents:
            try:
                if document.fault:
                    raise BadRequest(document.fault)
                signal, message = parse_document(document)
            except (BadRequest, OtlpError) as error:
                counts.add_unreadable(document.place, str(error))
                continue
            if signal is not TRACES:
                self._records[signal.noun] += signal.encode(message, UNLIMITED).count
                continue
            for resource in message.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self._add_span(span)

    def report(self) -> dict[str, object]:
        """Return the counts, with the most frequent kinds first."""
        return {
            **self._records,
            "traces": len(self._traces),
            "traces_with_token_ids": len(self._with_tokens),
            "kinds": dict(self._kinds.most_common()),
            "agents": dict(self._agents.most_common(SHOWN)),
            "scores": dict(self._scores.most_common(SHOWN)),
        }

    def _add_span(self, span: Any) -> None:
        values = {each.key: value_text(each.value) for each in span.attributes}
        self._records[TRACES.noun] += 1
        self._traces.add(span.trace_id)
        if attributes.RESPONSE_TOKEN_IDS in values:
            self._with_tokens.add(span.trace_id)
        if span.name == attributes.SPAN_EVALUATION:
            self._scores[values.get(attributes.EVALUATION_NAME, "reward")] += 1
            return
        scores = {name.split(".")[0] for name in values if name.startswith(SCORED)}
        self._scores.update(scores)
        kind = next((values[name] for name in KINDS if values.get(name)), "other")
        self._kinds[kind.strip('"').lower()] += 1
        if agent := values.get(attributes.AGENT_NAME):
            self._agents[agent] += 1
