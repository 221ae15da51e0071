-- The columns of the OpenTelemetry Collector's ClickHouse exporter, then ltrain's, which it never
-- names: the exporter can insert into this table. Key, engine and partitions read a rollout with one
-- seek and remove duplicate spans. No TTL, which would silently drop replayed traffic.
CREATE TABLE IF NOT EXISTS otel.otel_traces (
    Timestamp DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    TraceId String CODEC(ZSTD(1)),
    SpanId String CODEC(ZSTD(1)),
    ParentSpanId String CODEC(ZSTD(1)),
    TraceState String CODEC(ZSTD(1)),
    SpanName LowCardinality(String) CODEC(ZSTD(1)),
    SpanKind LowCardinality(String) CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)),
    SpanAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    Duration UInt64 CODEC(T64, ZSTD(1)),
    StatusCode LowCardinality(String) CODEC(ZSTD(1)),
    StatusMessage String CODEC(ZSTD(1)),
    Events Nested (
        Timestamp DateTime64(9),
        Name LowCardinality(String),
        Attributes Map(LowCardinality(String), String)
    ) CODEC(ZSTD(1)),
    Links Nested (
        TraceId String,
        SpanId String,
        TraceState String,
        Attributes Map(LowCardinality(String), String)
    ) CODEC(ZSTD(1)),

    -- The promoted columns.
    {traces_columns},
    IngestedAt DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    -- The complete one of several duplicates stays, else the first, so that later reads return the
    -- same row.
    Precedence UInt64 MATERIALIZED if(SpanAttributes['ltrain.truncated'] NOT IN ('', 'false'), 0, bitShiftLeft(toUInt64(1), 62)) + (bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3)))) CODEC(ZSTD(1)),

    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_task TaskId TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_policy_version PolicyVersion TYPE minmax GRANULARITY 1,
    INDEX idx_ingested_at IngestedAt TYPE minmax GRANULARITY 1
) ENGINE = ReplacingMergeTree(Precedence)
PARTITION BY toYYYYMM(Timestamp)
ORDER BY (RunId, RolloutId, Attempt, TraceId, Timestamp, SpanId)
SETTINGS index_granularity_bytes = 1048576;
