"""Phoenix: annotations of spans and traces, which an `identifier` updates (version 9 and later)."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from ltrain_collector.errors import NotThere
from ltrain_collector.sources import Address, Api
from ltrain_transforms.annotations.annotation import PERSON, Annotation

SIZE = 100
"""Annotations of a request."""


class PhoenixAnnotations:
    """The annotations of one server."""

    keys: ClassVar[tuple[str, ...]] = ("PHOENIX_API_KEY",)

    def __init__(self, address: Address) -> None:
        self._api = Api(address, "/v1", self.keys)
        if key := os.environ.get(self.keys[0]):
            self._api.set_header("Authorization", f"Bearer {key}")

    def push(self, annotations: Sequence[Annotation]) -> int:
        """Push annotations, and return how many judge a trace that the server does not have."""
        spans = [_body(each) | {"span_id": each.span} for each in annotations if each.span]
        traces = [_body(each) | {"trace_id": each.trace} for each in annotations if not each.span]
        return sum(
            self._post(f"{kind}_annotations?sync=true", bodies[start : start + SIZE])
            for kind, bodies in (("span", spans), ("trace", traces))
            for start in range(0, len(bodies), SIZE)
        )

    def _post(self, path: str, bodies: list[dict[str, Any]]) -> int:
        try:
            self._api.post(path, {"data": bodies})
            return 0
        except NotThere:  # of one of them at least
            if len(bodies) == 1:
                return 1
            half = len(bodies) // 2
            return self._post(path, bodies[:half]) + self._post(path, bodies[half:])


def _body(annotation: Annotation) -> dict[str, Any]:
    result = {
        "score": annotation.value,
        "label": annotation.label or None,
        "explanation": annotation.explanation or None,
    }
    return {
        "name": annotation.name,
        "annotator_kind": "HUMAN" if annotation.source == PERSON else "CODE",
        "result": {name: value for name, value in result.items() if value is not None},
        "metadata": {"source": annotation.source},
        "identifier": annotation.id,
    }
