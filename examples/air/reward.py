"""The outcome of a rollout: whether it has an answer after all pages of the document."""

from collections.abc import Mapping
from typing import Any

from document import PAGES


def score(task: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Return `reward`, the outcome, and `reads`, the successful calls of the tool.

    `reads` is only for diagnosis: more of them than pages are calls that the outcome does not need.
    """
    answered = result["answer"] is not None and result["pages"] == PAGES
    return {"reward": float(answered), "reads": float(result["reads"])}
