-- The sender of a record, by its key: readers derive roles from it, not from a scope's name.
ALTER TABLE otel.otel_logs ADD COLUMN IF NOT EXISTS
    Sender LowCardinality(String) MATERIALIZED ResourceAttributes['ltrain.sender'] AFTER Attempt;
