CREATE DATABASE IF NOT EXISTS otel;

-- Which steps this store has: rows are added once a step is done, and a step done twice is done once.
CREATE TABLE IF NOT EXISTS otel.ltrain_migrations (
    step String,
    version UInt32,
    program String,
    at DateTime64(3) DEFAULT now64(3)
) ENGINE = ReplacingMergeTree
ORDER BY step;
