"""The trace store: ClickHouse in this process or behind HTTP, its tables and views."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.store import rollout_stream
    from ltrain_collector.store.chdb_engine import (
        BACKUPS,
        READER_TAG,
        TOTAL_MEMORY_MESSAGE,
        Engine,
        query_errors,
        quote_literal,
        setup_statements,
    )
    from ltrain_collector.store.embedded import EmbeddedBackend
    from ltrain_collector.store.formats import (
        READING_STATEMENT,
        Parameters,
        is_streamable,
        stream_result,
        to_rows,
    )
    from ltrain_collector.store.migration import program_version
    from ltrain_collector.store.trace_store import Store

open_face(__name__)
