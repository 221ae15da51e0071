-- In existing parts, the column is computed when it is read, and written when they merge.
ALTER TABLE otel.otel_traces ADD COLUMN IF NOT EXISTS
    Domain LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.domain'] AFTER TaskId;
