-- The columns of the OpenTelemetry Collector's ClickHouse exporter, then ltrain's, which it never names.
-- A log record has no id: a duplicate is equal in every column, and the hash of all columns
-- removes it. No TTL, which would silently drop replayed traffic.
CREATE TABLE IF NOT EXISTS otel.otel_logs (
    Timestamp DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    TimestampTime DateTime DEFAULT toDateTime(Timestamp),
    TraceId String CODEC(ZSTD(1)),
    SpanId String CODEC(ZSTD(1)),
    TraceFlags UInt8,
    SeverityText LowCardinality(String) CODEC(ZSTD(1)),
    SeverityNumber UInt8,
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    Body String CODEC(ZSTD(1)),
    ResourceSchemaUrl LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeSchemaUrl LowCardinality(String) CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion LowCardinality(String) CODEC(ZSTD(1)),
    ScopeAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    LogAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    EventName String CODEC(ZSTD(1)),

    -- The promoted columns.
    {logs_columns},
    IngestedAt DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    RowHash UInt64 MATERIALIZED cityHash64(Timestamp, TraceId, SpanId, TraceFlags, SeverityText, SeverityNumber, ServiceName, Body, ResourceSchemaUrl, ResourceAttributes, ScopeSchemaUrl, ScopeName, ScopeVersion, ScopeAttributes, LogAttributes, EventName),
    -- The first of several duplicates stays, so that later reads return the same row.
    Precedence UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1)),

    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_timestamp Timestamp TYPE minmax GRANULARITY 1,
    INDEX idx_ingested_at IngestedAt TYPE minmax GRANULARITY 1
) ENGINE = ReplacingMergeTree(Precedence)
PARTITION BY toYYYYMM(Timestamp)
ORDER BY (RunId, RolloutId, Attempt, TraceId, Timestamp, RowHash)
SETTINGS index_granularity_bytes = 1048576;
