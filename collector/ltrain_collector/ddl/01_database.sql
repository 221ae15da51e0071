CREATE DATABASE IF NOT EXISTS otel;

-- The applied steps of this store: a row is added after a step, and duplicates are merged.
CREATE TABLE IF NOT EXISTS otel.ltrain_migrations (
    step String,
    version UInt32,
    program String,
    at DateTime64(3) DEFAULT now64(3)
) ENGINE = ReplacingMergeTree
ORDER BY step;
