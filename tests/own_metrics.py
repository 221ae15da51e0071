"""The values of a collector's own metrics."""

from collections.abc import Iterable

from prometheus_client.samples import Sample


def values(samples: Iterable[Sample]) -> dict[tuple[str, ...], float]:
    """Return each value by name, without its prefix, and label values."""
    return {
        (sample.name.removeprefix("ltrain_collector_"), *sample.labels.values()): sample.value
        for sample in samples
    }
