-- What parts that are there already give for it is computed on reading, and written when they merge.
ALTER TABLE otel.otel_traces ADD COLUMN IF NOT EXISTS
    Domain LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.domain'] AFTER TaskId;
