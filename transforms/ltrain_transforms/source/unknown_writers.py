"""The writers of stored spans that look like calls and that no dialect reads, for lists."""

from ltrain_collector.admin import TraceFilter
from ltrain_collector.store import Store
from ltrain_instrument.machine import visible
from ltrain_transforms.calls import REMEDY, UnknownWriter, newest_spans, unknown_spans


def unknown_writers(store: Store, selection: TraceFilter) -> list[str]:
    """Return a sentence on each such writer of the newest selected spans, and what to do."""
    where, params = selection.condition()
    rows = store.query(unknown_spans(newest_spans(where)), params).iter_rows()
    sentences = (f"{UnknownWriter(*row).problem}: {REMEDY}." for row in rows)
    return [visible(sentence[0].upper() + sentence[1:]) for sentence in sentences]
