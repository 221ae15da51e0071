"""`ltrain reward --push`: annotations to the platform of an address.

A new platform is a module with a class of the protocol `Platform`, and its place in `PLATFORMS`.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ltrain_collector.errors import BadSource
from ltrain_collector.sources import Address, is_address
from ltrain_collector.store import Store
from ltrain_transforms.annotations.annotation import (
    Annotation,
    read_advantages,
    read_evaluations,
)
from ltrain_transforms.annotations.langfuse import LangfuseScores
from ltrain_transforms.annotations.phoenix import PhoenixAnnotations
from ltrain_transforms.datasets import Dataset

UNKNOWN = "unknown_there"
"""The reason of annotations whose trace or session a platform does not have."""


class Platform(Protocol):
    """Keeps annotations of traces."""

    def __init__(self, address: Address) -> None: ...

    def push(self, annotations: Sequence[Annotation]) -> int:
        """Push annotations, and return how many judge a trace that the platform does not have.

        Raises:
            SourceFailed: the server cannot be reached or refuses.
        """
        ...


PLATFORMS: dict[str, type[Platform]] = {
    "langfuse": LangfuseScores,
    "phoenix": PhoenixAnnotations,
}


def push_annotations(
    url: str, dsn: str | None, run: str | None, dataset: Path | None
) -> tuple[int, Counter[str]]:
    """Push the evaluations of a store, and the advantages of a dataset if one is named.

    Return the number of pushed annotations, and of those that were left out by reason.

    Raises:
        BadSource: the address is of no known platform.
        SourceFailed: the server cannot be reached or refuses.
    """
    platform = _platform(url)
    advantages = [] if dataset is None else read_advantages(Dataset.open(dataset).require_intact())
    with Store.open(dsn, create=False) as store:
        annotations, left_out = read_evaluations(store, run or "")
    annotations += advantages
    unknown = platform.push(annotations)
    return len(annotations) - unknown, left_out + Counter({UNKNOWN: unknown})


def _platform(url: str) -> Platform:
    address = Address.parse(url) if is_address(url) else None
    if address is None or address.kind not in PLATFORMS:
        known = " or ".join(f"{kind}://HOST" for kind in sorted(PLATFORMS))
        raise BadSource(f"ltrain pushes no annotations to '{url}'. Write {known}.")
    return PLATFORMS[address.kind](address)
