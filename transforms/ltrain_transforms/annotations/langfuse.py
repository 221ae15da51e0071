"""Langfuse: scores of observations, traces and sessions, which their `id` updates."""

from collections.abc import Sequence
from typing import Any

from ltrain_collector.sources import Address, open_langfuse
from ltrain_transforms.annotations.annotation import Annotation

NOTE = "note"
"""The category of an annotation that has neither a value nor a label."""


class LangfuseScores:
    """The scores of the project of the keys."""

    def __init__(self, address: Address) -> None:
        self._api = open_langfuse(address)

    def push(self, annotations: Sequence[Annotation]) -> int:
        """Push annotations; Langfuse keeps those whose trace arrives later, so none is unknown."""
        for each in annotations:
            self._api.post("scores", _body(each))
        return 0


def _body(annotation: Annotation) -> dict[str, Any]:
    is_number = annotation.value is not None
    body = {
        "id": annotation.id,
        "traceId": annotation.trace or None,
        "sessionId": annotation.session or None,
        "observationId": annotation.span or None,
        "name": annotation.name,
        "value": annotation.value if is_number else annotation.label or NOTE,
        "dataType": "NUMERIC" if is_number else "CATEGORICAL",
        "comment": annotation.explanation or None,
    }
    return {name: value for name, value in body.items() if value is not None}
