-- Who sent a record, by the key it came with: roles are believed by this, not by a scope's name.
ALTER TABLE otel.otel_logs ADD COLUMN IF NOT EXISTS
    Sender LowCardinality(String) MATERIALIZED ResourceAttributes['ltrain.sender'] AFTER Attempt;
