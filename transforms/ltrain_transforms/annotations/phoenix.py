"""Phoenix: annotations of spans, traces and sessions, which an `identifier` updates.

Those of spans and traces are in version 9 and later, those of sessions in version 12 and later.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ltrain_collector.errors import NotThere
from ltrain_collector.sources import Address, open_phoenix
from ltrain_transforms.annotations.annotation import PERSON, Annotation

SIZE = 100
"""Annotations of a request."""


class PhoenixAnnotations:
    """The annotations of one server."""

    def __init__(self, address: Address) -> None:
        self._api = open_phoenix(address)

    def push(self, annotations: Sequence[Annotation]) -> int:
        """Push annotations, and return how many judge what the server does not have."""
        bodies = defaultdict[str, list[dict[str, Any]]](list)
        for each in annotations:
            ids = {"span": each.span, "session": each.session, "trace": each.trace}
            kind, id = next((kind, id) for kind, id in ids.items() if id)
            bodies[kind].append(_body(each) | {f"{kind}_id": id})
        return sum(
            self._post(f"{kind}_annotations?sync=true", some[start : start + SIZE])
            for kind, some in bodies.items()
            for start in range(0, len(some), SIZE)
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
