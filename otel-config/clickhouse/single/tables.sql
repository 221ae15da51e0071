-- Made by `make docs` from the schema of a new store; change the schema instead.

CREATE DATABASE IF NOT EXISTS otel;

DROP VIEW IF EXISTS otel.rewards;

CREATE TABLE IF NOT EXISTS otel.ltrain_migrations
(
    `step` String,
    `version` UInt32,
    `program` String,
    `at` DateTime64(3) DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree
ORDER BY step
SETTINGS index_granularity = 8192;

INSERT INTO otel.ltrain_migrations (step, version, program) VALUES
('01_database',1,'0.1.0'),
('02_logs',11,'0.1.0'),
('02_metrics',13,'0.1.0'),
('02_traces',2,'0.1.0'),
('03_trace_executions',3,'0.1.0'),
('04_domain',4,'0.1.0'),
('08_sender_logs',12,'0.1.0'),
('08_sender_traces',5,'0.1.0'),
('09_renamed_views',14,'0.1.0'),
('10_resource_traces',6,'0.1.0'),
('11_reports_traces',9,'0.1.0'),
('12_lists_traces',7,'0.1.0'),
('13_parts',10,'0.1.0'),
('14_log_spans',15,'0.1.0'),
('15_log_span_answers',16,'0.1.0'),
('16_platforms_traces',8,'0.1.0'),
('views',16,'0.1.0');

CREATE TABLE IF NOT EXISTS otel.otel_logs
(
    `Timestamp` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `TimestampTime` DateTime DEFAULT toDateTime(Timestamp),
    `TraceId` String CODEC(ZSTD(1)),
    `SpanId` String CODEC(ZSTD(1)),
    `TraceFlags` UInt8,
    `SeverityText` LowCardinality(String) CODEC(ZSTD(1)),
    `SeverityNumber` UInt8,
    `ServiceName` LowCardinality(String) CODEC(ZSTD(1)),
    `Body` String CODEC(ZSTD(1)),
    `ResourceSchemaUrl` LowCardinality(String) CODEC(ZSTD(1)),
    `ResourceAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ScopeSchemaUrl` LowCardinality(String) CODEC(ZSTD(1)),
    `ScopeName` String CODEC(ZSTD(1)),
    `ScopeVersion` LowCardinality(String) CODEC(ZSTD(1)),
    `ScopeAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `LogAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `EventName` String CODEC(ZSTD(1)),
    `RunId` LowCardinality(String) MATERIALIZED if((LogAttributes['ltrain.run.id']) != '', LogAttributes['ltrain.run.id'], ResourceAttributes['ltrain.run.id']),
    `RolloutId` String MATERIALIZED multiIf((LogAttributes['ltrain.rollout.id']) != '', LogAttributes['ltrain.rollout.id'], (ResourceAttributes['ltrain.rollout.id']) != '', ResourceAttributes['ltrain.rollout.id'], ResourceAttributes['agentlightning.rollout_id']) CODEC(ZSTD(1)),
    `Attempt` LowCardinality(String) MATERIALIZED multiIf((LogAttributes['ltrain.attempt.id']) != '', LogAttributes['ltrain.attempt.id'], (ResourceAttributes['ltrain.attempt.id']) != '', ResourceAttributes['ltrain.attempt.id'], ResourceAttributes['agentlightning.attempt_id']),
    `Sender` LowCardinality(String) MATERIALIZED ResourceAttributes['ltrain.sender'],
    `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    `RowHash` UInt64 MATERIALIZED cityHash64(Timestamp, TraceId, SpanId, TraceFlags, SeverityText, SeverityNumber, ServiceName, Body, ResourceSchemaUrl, ResourceAttributes, ScopeSchemaUrl, ScopeName, ScopeVersion, ScopeAttributes, LogAttributes, EventName),
    `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1)),
    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_timestamp Timestamp TYPE minmax GRANULARITY 1,
    INDEX idx_ingested_at IngestedAt TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(Precedence)
PARTITION BY toYYYYMM(Timestamp)
ORDER BY (RunId, RolloutId, Attempt, TraceId, Timestamp, RowHash)
SETTINGS index_granularity_bytes = 1048576, index_granularity = 8192;

ALTER TABLE otel.otel_logs
    ADD COLUMN IF NOT EXISTS `Sender` LowCardinality(String) MATERIALIZED ResourceAttributes['ltrain.sender'],
    ADD COLUMN IF NOT EXISTS `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1));

CREATE TABLE IF NOT EXISTS otel.otel_metrics_exponential_histogram
(
    `ResourceAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ResourceSchemaUrl` String CODEC(ZSTD(1)),
    `ScopeName` String CODEC(ZSTD(1)),
    `ScopeVersion` String CODEC(ZSTD(1)),
    `ScopeAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ScopeDroppedAttrCount` UInt32 CODEC(ZSTD(1)),
    `ScopeSchemaUrl` String CODEC(ZSTD(1)),
    `ServiceName` LowCardinality(String) CODEC(ZSTD(1)),
    `MetricName` LowCardinality(String) CODEC(ZSTD(1)),
    `MetricDescription` String CODEC(ZSTD(1)),
    `MetricUnit` String CODEC(ZSTD(1)),
    `Attributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `StartTimeUnix` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `TimeUnix` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `Count` UInt64 CODEC(Delta(8), ZSTD(1)),
    `Sum` Float64 CODEC(ZSTD(1)),
    `Scale` Int32 CODEC(ZSTD(1)),
    `ZeroCount` UInt64 CODEC(ZSTD(1)),
    `PositiveOffset` Int32 CODEC(ZSTD(1)),
    `PositiveBucketCounts` Array(UInt64) CODEC(ZSTD(1)),
    `NegativeOffset` Int32 CODEC(ZSTD(1)),
    `NegativeBucketCounts` Array(UInt64) CODEC(ZSTD(1)),
    `Exemplars.FilteredAttributes` Array(Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    `Exemplars.TimeUnix` Array(DateTime64(9)) CODEC(ZSTD(1)),
    `Exemplars.Value` Array(Float64) CODEC(ZSTD(1)),
    `Exemplars.SpanId` Array(String) CODEC(ZSTD(1)),
    `Exemplars.TraceId` Array(String) CODEC(ZSTD(1)),
    `Flags` UInt32 CODEC(ZSTD(1)),
    `Min` Float64 CODEC(ZSTD(1)),
    `Max` Float64 CODEC(ZSTD(1)),
    `AggregationTemporality` Int32 CODEC(ZSTD(1)),
    `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    `RowHash` UInt64 MATERIALIZED cityHash64(ResourceAttributes, ResourceSchemaUrl, ScopeName, ScopeVersion, ScopeAttributes, ScopeDroppedAttrCount, ScopeSchemaUrl, ServiceName, MetricName, MetricDescription, MetricUnit, Attributes, StartTimeUnix, TimeUnix, Count, Sum, Scale, ZeroCount, PositiveOffset, PositiveBucketCounts, NegativeOffset, NegativeBucketCounts, `Exemplars.FilteredAttributes`, `Exemplars.TimeUnix`, `Exemplars.Value`, `Exemplars.SpanId`, `Exemplars.TraceId`, Flags, Min, Max, AggregationTemporality),
    `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1)),
    INDEX idx_time TimeUnix TYPE minmax GRANULARITY 1,
    INDEX idx_ingested_at IngestedAt TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(Precedence)
PARTITION BY toYYYYMM(TimeUnix)
ORDER BY (ServiceName, MetricName, Attributes, TimeUnix, RowHash)
SETTINGS index_granularity = 8192;

ALTER TABLE otel.otel_metrics_exponential_histogram
    ADD COLUMN IF NOT EXISTS `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1));

CREATE TABLE IF NOT EXISTS otel.otel_metrics_gauge
(
    `ResourceAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ResourceSchemaUrl` String CODEC(ZSTD(1)),
    `ScopeName` String CODEC(ZSTD(1)),
    `ScopeVersion` String CODEC(ZSTD(1)),
    `ScopeAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ScopeDroppedAttrCount` UInt32 CODEC(ZSTD(1)),
    `ScopeSchemaUrl` String CODEC(ZSTD(1)),
    `ServiceName` LowCardinality(String) CODEC(ZSTD(1)),
    `MetricName` LowCardinality(String) CODEC(ZSTD(1)),
    `MetricDescription` String CODEC(ZSTD(1)),
    `MetricUnit` String CODEC(ZSTD(1)),
    `Attributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `StartTimeUnix` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `TimeUnix` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `Value` Float64 CODEC(ZSTD(1)),
    `Flags` UInt32 CODEC(ZSTD(1)),
    `Exemplars.FilteredAttributes` Array(Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    `Exemplars.TimeUnix` Array(DateTime64(9)) CODEC(ZSTD(1)),
    `Exemplars.Value` Array(Float64) CODEC(ZSTD(1)),
    `Exemplars.SpanId` Array(String) CODEC(ZSTD(1)),
    `Exemplars.TraceId` Array(String) CODEC(ZSTD(1)),
    `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    `RowHash` UInt64 MATERIALIZED cityHash64(ResourceAttributes, ResourceSchemaUrl, ScopeName, ScopeVersion, ScopeAttributes, ScopeDroppedAttrCount, ScopeSchemaUrl, ServiceName, MetricName, MetricDescription, MetricUnit, Attributes, StartTimeUnix, TimeUnix, Value, Flags, `Exemplars.FilteredAttributes`, `Exemplars.TimeUnix`, `Exemplars.Value`, `Exemplars.SpanId`, `Exemplars.TraceId`),
    `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1)),
    INDEX idx_time TimeUnix TYPE minmax GRANULARITY 1,
    INDEX idx_ingested_at IngestedAt TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(Precedence)
PARTITION BY toYYYYMM(TimeUnix)
ORDER BY (ServiceName, MetricName, Attributes, TimeUnix, RowHash)
SETTINGS index_granularity = 8192;

ALTER TABLE otel.otel_metrics_gauge
    ADD COLUMN IF NOT EXISTS `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1));

CREATE TABLE IF NOT EXISTS otel.otel_metrics_histogram
(
    `ResourceAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ResourceSchemaUrl` String CODEC(ZSTD(1)),
    `ScopeName` String CODEC(ZSTD(1)),
    `ScopeVersion` String CODEC(ZSTD(1)),
    `ScopeAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ScopeDroppedAttrCount` UInt32 CODEC(ZSTD(1)),
    `ScopeSchemaUrl` String CODEC(ZSTD(1)),
    `ServiceName` LowCardinality(String) CODEC(ZSTD(1)),
    `MetricName` LowCardinality(String) CODEC(ZSTD(1)),
    `MetricDescription` String CODEC(ZSTD(1)),
    `MetricUnit` String CODEC(ZSTD(1)),
    `Attributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `StartTimeUnix` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `TimeUnix` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `Count` UInt64 CODEC(Delta(8), ZSTD(1)),
    `Sum` Float64 CODEC(ZSTD(1)),
    `BucketCounts` Array(UInt64) CODEC(ZSTD(1)),
    `ExplicitBounds` Array(Float64) CODEC(ZSTD(1)),
    `Exemplars.FilteredAttributes` Array(Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    `Exemplars.TimeUnix` Array(DateTime64(9)) CODEC(ZSTD(1)),
    `Exemplars.Value` Array(Float64) CODEC(ZSTD(1)),
    `Exemplars.SpanId` Array(String) CODEC(ZSTD(1)),
    `Exemplars.TraceId` Array(String) CODEC(ZSTD(1)),
    `Flags` UInt32 CODEC(ZSTD(1)),
    `Min` Float64 CODEC(ZSTD(1)),
    `Max` Float64 CODEC(ZSTD(1)),
    `AggregationTemporality` Int32 CODEC(ZSTD(1)),
    `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    `RowHash` UInt64 MATERIALIZED cityHash64(ResourceAttributes, ResourceSchemaUrl, ScopeName, ScopeVersion, ScopeAttributes, ScopeDroppedAttrCount, ScopeSchemaUrl, ServiceName, MetricName, MetricDescription, MetricUnit, Attributes, StartTimeUnix, TimeUnix, Count, Sum, BucketCounts, ExplicitBounds, `Exemplars.FilteredAttributes`, `Exemplars.TimeUnix`, `Exemplars.Value`, `Exemplars.SpanId`, `Exemplars.TraceId`, Flags, Min, Max, AggregationTemporality),
    `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1)),
    INDEX idx_time TimeUnix TYPE minmax GRANULARITY 1,
    INDEX idx_ingested_at IngestedAt TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(Precedence)
PARTITION BY toYYYYMM(TimeUnix)
ORDER BY (ServiceName, MetricName, Attributes, TimeUnix, RowHash)
SETTINGS index_granularity = 8192;

ALTER TABLE otel.otel_metrics_histogram
    ADD COLUMN IF NOT EXISTS `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1));

CREATE TABLE IF NOT EXISTS otel.otel_metrics_sum
(
    `ResourceAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ResourceSchemaUrl` String CODEC(ZSTD(1)),
    `ScopeName` String CODEC(ZSTD(1)),
    `ScopeVersion` String CODEC(ZSTD(1)),
    `ScopeAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ScopeDroppedAttrCount` UInt32 CODEC(ZSTD(1)),
    `ScopeSchemaUrl` String CODEC(ZSTD(1)),
    `ServiceName` LowCardinality(String) CODEC(ZSTD(1)),
    `MetricName` LowCardinality(String) CODEC(ZSTD(1)),
    `MetricDescription` String CODEC(ZSTD(1)),
    `MetricUnit` String CODEC(ZSTD(1)),
    `Attributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `StartTimeUnix` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `TimeUnix` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `Value` Float64 CODEC(ZSTD(1)),
    `Flags` UInt32 CODEC(ZSTD(1)),
    `Exemplars.FilteredAttributes` Array(Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    `Exemplars.TimeUnix` Array(DateTime64(9)) CODEC(ZSTD(1)),
    `Exemplars.Value` Array(Float64) CODEC(ZSTD(1)),
    `Exemplars.SpanId` Array(String) CODEC(ZSTD(1)),
    `Exemplars.TraceId` Array(String) CODEC(ZSTD(1)),
    `AggregationTemporality` Int32 CODEC(ZSTD(1)),
    `IsMonotonic` Bool CODEC(ZSTD(1)),
    `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    `RowHash` UInt64 MATERIALIZED cityHash64(ResourceAttributes, ResourceSchemaUrl, ScopeName, ScopeVersion, ScopeAttributes, ScopeDroppedAttrCount, ScopeSchemaUrl, ServiceName, MetricName, MetricDescription, MetricUnit, Attributes, StartTimeUnix, TimeUnix, Value, Flags, `Exemplars.FilteredAttributes`, `Exemplars.TimeUnix`, `Exemplars.Value`, `Exemplars.SpanId`, `Exemplars.TraceId`, AggregationTemporality, IsMonotonic),
    `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1)),
    INDEX idx_time TimeUnix TYPE minmax GRANULARITY 1,
    INDEX idx_ingested_at IngestedAt TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(Precedence)
PARTITION BY toYYYYMM(TimeUnix)
ORDER BY (ServiceName, MetricName, Attributes, TimeUnix, RowHash)
SETTINGS index_granularity = 8192;

ALTER TABLE otel.otel_metrics_sum
    ADD COLUMN IF NOT EXISTS `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1));

CREATE TABLE IF NOT EXISTS otel.otel_metrics_summary
(
    `ResourceAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ResourceSchemaUrl` String CODEC(ZSTD(1)),
    `ScopeName` String CODEC(ZSTD(1)),
    `ScopeVersion` String CODEC(ZSTD(1)),
    `ScopeAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ScopeDroppedAttrCount` UInt32 CODEC(ZSTD(1)),
    `ScopeSchemaUrl` String CODEC(ZSTD(1)),
    `ServiceName` LowCardinality(String) CODEC(ZSTD(1)),
    `MetricName` LowCardinality(String) CODEC(ZSTD(1)),
    `MetricDescription` String CODEC(ZSTD(1)),
    `MetricUnit` String CODEC(ZSTD(1)),
    `Attributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `StartTimeUnix` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `TimeUnix` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `Count` UInt64 CODEC(Delta(8), ZSTD(1)),
    `Sum` Float64 CODEC(ZSTD(1)),
    `ValueAtQuantiles.Quantile` Array(Float64) CODEC(ZSTD(1)),
    `ValueAtQuantiles.Value` Array(Float64) CODEC(ZSTD(1)),
    `Flags` UInt32 CODEC(ZSTD(1)),
    `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    `RowHash` UInt64 MATERIALIZED cityHash64(ResourceAttributes, ResourceSchemaUrl, ScopeName, ScopeVersion, ScopeAttributes, ScopeDroppedAttrCount, ScopeSchemaUrl, ServiceName, MetricName, MetricDescription, MetricUnit, Attributes, StartTimeUnix, TimeUnix, Count, Sum, `ValueAtQuantiles.Quantile`, `ValueAtQuantiles.Value`, Flags),
    `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1)),
    INDEX idx_time TimeUnix TYPE minmax GRANULARITY 1,
    INDEX idx_ingested_at IngestedAt TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(Precedence)
PARTITION BY toYYYYMM(TimeUnix)
ORDER BY (ServiceName, MetricName, Attributes, TimeUnix, RowHash)
SETTINGS index_granularity = 8192;

ALTER TABLE otel.otel_metrics_summary
    ADD COLUMN IF NOT EXISTS `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `Precedence` UInt64 MATERIALIZED bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3))) CODEC(ZSTD(1));

CREATE TABLE IF NOT EXISTS otel.otel_trace_executions
(
    `TraceId` String,
    `RunId` LowCardinality(String),
    `RolloutId` String,
    `Attempt` LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (TraceId, RunId, RolloutId, Attempt)
SETTINGS index_granularity = 8192, merge_selector_base = 10;

CREATE TABLE IF NOT EXISTS otel.otel_traces
(
    `Timestamp` DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    `TraceId` String CODEC(ZSTD(1)),
    `SpanId` String CODEC(ZSTD(1)),
    `ParentSpanId` String CODEC(ZSTD(1)),
    `TraceState` String CODEC(ZSTD(1)),
    `SpanName` LowCardinality(String) CODEC(ZSTD(1)),
    `SpanKind` LowCardinality(String) CODEC(ZSTD(1)),
    `ServiceName` LowCardinality(String) CODEC(ZSTD(1)),
    `ResourceAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `ScopeName` String CODEC(ZSTD(1)),
    `ScopeVersion` String CODEC(ZSTD(1)),
    `SpanAttributes` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `Duration` UInt64 CODEC(T64, ZSTD(1)),
    `StatusCode` LowCardinality(String) CODEC(ZSTD(1)),
    `StatusMessage` String CODEC(ZSTD(1)),
    `Events.Timestamp` Array(DateTime64(9)) CODEC(ZSTD(1)),
    `Events.Name` Array(LowCardinality(String)) CODEC(ZSTD(1)),
    `Events.Attributes` Array(Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    `Links.TraceId` Array(String) CODEC(ZSTD(1)),
    `Links.SpanId` Array(String) CODEC(ZSTD(1)),
    `Links.TraceState` Array(String) CODEC(ZSTD(1)),
    `Links.Attributes` Array(Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    `RunId` LowCardinality(String) MATERIALIZED if((SpanAttributes['ltrain.run.id']) != '', SpanAttributes['ltrain.run.id'], ResourceAttributes['ltrain.run.id']),
    `RolloutId` String MATERIALIZED multiIf((SpanAttributes['ltrain.rollout.id']) != '', SpanAttributes['ltrain.rollout.id'], (ResourceAttributes['ltrain.rollout.id']) != '', ResourceAttributes['ltrain.rollout.id'], ResourceAttributes['agentlightning.rollout_id']) CODEC(ZSTD(1)),
    `Attempt` LowCardinality(String) MATERIALIZED multiIf((SpanAttributes['ltrain.attempt.id']) != '', SpanAttributes['ltrain.attempt.id'], (ResourceAttributes['ltrain.attempt.id']) != '', ResourceAttributes['ltrain.attempt.id'], ResourceAttributes['agentlightning.attempt_id']),
    `Sender` LowCardinality(String) MATERIALIZED ResourceAttributes['ltrain.sender'],
    `TaskId` String MATERIALIZED if((SpanAttributes['ltrain.task.id']) != '', SpanAttributes['ltrain.task.id'], ResourceAttributes['ltrain.task.id']) CODEC(ZSTD(1)),
    `Domain` LowCardinality(String) MATERIALIZED if((SpanAttributes['ltrain.domain']) != '', SpanAttributes['ltrain.domain'], ResourceAttributes['ltrain.domain']),
    `Mode` LowCardinality(String) MATERIALIZED if((SpanAttributes['ltrain.mode']) != '', SpanAttributes['ltrain.mode'], ResourceAttributes['ltrain.mode']),
    `Wave` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['ltrain.wave']) != '', SpanAttributes['ltrain.wave'], ResourceAttributes['ltrain.wave'])) CODEC(T64, ZSTD(1)),
    `SampleIndex` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['ltrain.sample.index']) != '', SpanAttributes['ltrain.sample.index'], ResourceAttributes['ltrain.sample.index'])) CODEC(T64, ZSTD(1)),
    `PolicyName` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.policy.name'],
    `PolicyVersion` UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['ltrain.policy.version']) CODEC(T64, ZSTD(1)),
    `GenAiOp` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.operation.name'],
    `GenAiModel` LowCardinality(String) MATERIALIZED if((SpanAttributes['gen_ai.response.model']) != '', SpanAttributes['gen_ai.response.model'], SpanAttributes['gen_ai.request.model']),
    `InTokens` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['gen_ai.usage.input_tokens']) != '', SpanAttributes['gen_ai.usage.input_tokens'], SpanAttributes['llm.token_count.prompt'])) CODEC(T64, ZSTD(1)),
    `OutTokens` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['gen_ai.usage.output_tokens']) != '', SpanAttributes['gen_ai.usage.output_tokens'], SpanAttributes['llm.token_count.completion'])) CODEC(T64, ZSTD(1)),
    `ToolName` LowCardinality(String) MATERIALIZED multiIf((SpanAttributes['gen_ai.tool.name']) != '', SpanAttributes['gen_ai.tool.name'], (SpanAttributes['tool.name']) != '', SpanAttributes['tool.name'], (SpanAttributes['mcp.tool.name']) != '', SpanAttributes['mcp.tool.name'], SpanAttributes['ai.toolCall.name']),
    `AgentName` LowCardinality(String) MATERIALIZED multiIf((SpanAttributes['gen_ai.agent.name']) != '', SpanAttributes['gen_ai.agent.name'], (SpanAttributes['langgraph.node']) != '', SpanAttributes['langgraph.node'], (SpanAttributes['langsmith.metadata.langgraph_node']) != '', SpanAttributes['langsmith.metadata.langgraph_node'], SpanAttributes['graph.node.id']),
    `SessionId` String MATERIALIZED multiIf((SpanAttributes['session.id']) != '', SpanAttributes['session.id'], (SpanAttributes['gen_ai.conversation.id']) != '', SpanAttributes['gen_ai.conversation.id'], (SpanAttributes['traceloop.association.properties.session_id']) != '', SpanAttributes['traceloop.association.properties.session_id'], (SpanAttributes['traceloop.association.properties.thread_id']) != '', SpanAttributes['traceloop.association.properties.thread_id'], (SpanAttributes['langsmith.metadata.session_id']) != '', SpanAttributes['langsmith.metadata.session_id'], (SpanAttributes['langsmith.metadata.thread_id']) != '', SpanAttributes['langsmith.metadata.thread_id'], (SpanAttributes['ai.telemetry.metadata.sessionId']) != '', SpanAttributes['ai.telemetry.metadata.sessionId'], (SpanAttributes['lmnr.association.properties.session_id']) != '', SpanAttributes['lmnr.association.properties.session_id'], SpanAttributes['thread_id']) CODEC(ZSTD(1)),
    `GenAiKind` LowCardinality(String) MATERIALIZED multiIf((SpanAttributes['llm.request.type']) != '', SpanAttributes['llm.request.type'], (SpanAttributes['openinference.span.kind']) != '', SpanAttributes['openinference.span.kind'], (SpanAttributes['langsmith.span.kind']) != '', SpanAttributes['langsmith.span.kind'], (SpanAttributes['langfuse.observation.type']) != '', SpanAttributes['langfuse.observation.type'], (SpanAttributes['agentops.span.kind']) != '', SpanAttributes['agentops.span.kind'], (SpanAttributes['traceloop.span.kind']) != '', SpanAttributes['traceloop.span.kind'], (SpanAttributes['ai.operationId']) != '', SpanAttributes['ai.operationId'], (SpanAttributes['mlflow.spanType']) != '', SpanAttributes['mlflow.spanType'], (SpanAttributes['lmnr.span.type']) != '', SpanAttributes['lmnr.span.type'], SpanAttributes['weave.span.kind']),
    `Outcome` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.rollout.outcome'],
    `EvaluationName` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.evaluation.name'],
    `EvaluationValue` String MATERIALIZED SpanAttributes['gen_ai.evaluation.score.value'] CODEC(ZSTD(1)),
    `EvaluationLabel` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.evaluation.score.label'],
    `EvaluationScope` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.reward.scope'],
    `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    `Precedence` UInt64 MATERIALIZED if(((SpanAttributes['ltrain.truncated']) NOT IN ('', 'false')), 0, bitShiftLeft(toUInt64(1), 62)) + (bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3)))) CODEC(ZSTD(1)),
    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_task TaskId TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_policy_version PolicyVersion TYPE minmax GRANULARITY 1,
    INDEX idx_ingested_at IngestedAt TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(Precedence)
PARTITION BY toYYYYMM(Timestamp)
ORDER BY (RunId, RolloutId, Attempt, TraceId, Timestamp, SpanId)
SETTINGS index_granularity_bytes = 1048576, index_granularity = 8192, merge_selector_base = 10, min_bytes_for_wide_part = 67108864;

ALTER TABLE otel.otel_traces
    ADD COLUMN IF NOT EXISTS `Sender` LowCardinality(String) MATERIALIZED ResourceAttributes['ltrain.sender'],
    ADD COLUMN IF NOT EXISTS `TaskId` String MATERIALIZED if((SpanAttributes['ltrain.task.id']) != '', SpanAttributes['ltrain.task.id'], ResourceAttributes['ltrain.task.id']) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `Domain` LowCardinality(String) MATERIALIZED if((SpanAttributes['ltrain.domain']) != '', SpanAttributes['ltrain.domain'], ResourceAttributes['ltrain.domain']),
    ADD COLUMN IF NOT EXISTS `Mode` LowCardinality(String) MATERIALIZED if((SpanAttributes['ltrain.mode']) != '', SpanAttributes['ltrain.mode'], ResourceAttributes['ltrain.mode']),
    ADD COLUMN IF NOT EXISTS `Wave` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['ltrain.wave']) != '', SpanAttributes['ltrain.wave'], ResourceAttributes['ltrain.wave'])) CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `SampleIndex` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['ltrain.sample.index']) != '', SpanAttributes['ltrain.sample.index'], ResourceAttributes['ltrain.sample.index'])) CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `PolicyName` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.policy.name'],
    ADD COLUMN IF NOT EXISTS `PolicyVersion` UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['ltrain.policy.version']) CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `GenAiOp` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.operation.name'],
    ADD COLUMN IF NOT EXISTS `GenAiModel` LowCardinality(String) MATERIALIZED if((SpanAttributes['gen_ai.response.model']) != '', SpanAttributes['gen_ai.response.model'], SpanAttributes['gen_ai.request.model']),
    ADD COLUMN IF NOT EXISTS `InTokens` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['gen_ai.usage.input_tokens']) != '', SpanAttributes['gen_ai.usage.input_tokens'], SpanAttributes['llm.token_count.prompt'])) CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `OutTokens` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['gen_ai.usage.output_tokens']) != '', SpanAttributes['gen_ai.usage.output_tokens'], SpanAttributes['llm.token_count.completion'])) CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `ToolName` LowCardinality(String) MATERIALIZED multiIf((SpanAttributes['gen_ai.tool.name']) != '', SpanAttributes['gen_ai.tool.name'], (SpanAttributes['tool.name']) != '', SpanAttributes['tool.name'], (SpanAttributes['mcp.tool.name']) != '', SpanAttributes['mcp.tool.name'], SpanAttributes['ai.toolCall.name']),
    ADD COLUMN IF NOT EXISTS `AgentName` LowCardinality(String) MATERIALIZED multiIf((SpanAttributes['gen_ai.agent.name']) != '', SpanAttributes['gen_ai.agent.name'], (SpanAttributes['langgraph.node']) != '', SpanAttributes['langgraph.node'], (SpanAttributes['langsmith.metadata.langgraph_node']) != '', SpanAttributes['langsmith.metadata.langgraph_node'], SpanAttributes['graph.node.id']),
    ADD COLUMN IF NOT EXISTS `SessionId` String MATERIALIZED multiIf((SpanAttributes['session.id']) != '', SpanAttributes['session.id'], (SpanAttributes['gen_ai.conversation.id']) != '', SpanAttributes['gen_ai.conversation.id'], (SpanAttributes['traceloop.association.properties.session_id']) != '', SpanAttributes['traceloop.association.properties.session_id'], (SpanAttributes['traceloop.association.properties.thread_id']) != '', SpanAttributes['traceloop.association.properties.thread_id'], (SpanAttributes['langsmith.metadata.session_id']) != '', SpanAttributes['langsmith.metadata.session_id'], (SpanAttributes['langsmith.metadata.thread_id']) != '', SpanAttributes['langsmith.metadata.thread_id'], (SpanAttributes['ai.telemetry.metadata.sessionId']) != '', SpanAttributes['ai.telemetry.metadata.sessionId'], (SpanAttributes['lmnr.association.properties.session_id']) != '', SpanAttributes['lmnr.association.properties.session_id'], SpanAttributes['thread_id']) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `GenAiKind` LowCardinality(String) MATERIALIZED multiIf((SpanAttributes['llm.request.type']) != '', SpanAttributes['llm.request.type'], (SpanAttributes['openinference.span.kind']) != '', SpanAttributes['openinference.span.kind'], (SpanAttributes['langsmith.span.kind']) != '', SpanAttributes['langsmith.span.kind'], (SpanAttributes['langfuse.observation.type']) != '', SpanAttributes['langfuse.observation.type'], (SpanAttributes['agentops.span.kind']) != '', SpanAttributes['agentops.span.kind'], (SpanAttributes['traceloop.span.kind']) != '', SpanAttributes['traceloop.span.kind'], (SpanAttributes['ai.operationId']) != '', SpanAttributes['ai.operationId'], (SpanAttributes['mlflow.spanType']) != '', SpanAttributes['mlflow.spanType'], (SpanAttributes['lmnr.span.type']) != '', SpanAttributes['lmnr.span.type'], SpanAttributes['weave.span.kind']),
    ADD COLUMN IF NOT EXISTS `Outcome` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.rollout.outcome'],
    ADD COLUMN IF NOT EXISTS `EvaluationName` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.evaluation.name'],
    ADD COLUMN IF NOT EXISTS `EvaluationValue` String MATERIALIZED SpanAttributes['gen_ai.evaluation.score.value'] CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `EvaluationLabel` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.evaluation.score.label'],
    ADD COLUMN IF NOT EXISTS `EvaluationScope` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.reward.scope'],
    ADD COLUMN IF NOT EXISTS `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `Precedence` UInt64 MATERIALIZED if(((SpanAttributes['ltrain.truncated']) NOT IN ('', 'false')), 0, bitShiftLeft(toUInt64(1), 62)) + (bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3)))) CODEC(ZSTD(1));

ALTER TABLE otel.otel_traces
    MODIFY COLUMN `TaskId` String MATERIALIZED if((SpanAttributes['ltrain.task.id']) != '', SpanAttributes['ltrain.task.id'], ResourceAttributes['ltrain.task.id']) CODEC(ZSTD(1)),
    MODIFY COLUMN `Domain` LowCardinality(String) MATERIALIZED if((SpanAttributes['ltrain.domain']) != '', SpanAttributes['ltrain.domain'], ResourceAttributes['ltrain.domain']),
    MODIFY COLUMN `Mode` LowCardinality(String) MATERIALIZED if((SpanAttributes['ltrain.mode']) != '', SpanAttributes['ltrain.mode'], ResourceAttributes['ltrain.mode']),
    MODIFY COLUMN `Wave` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['ltrain.wave']) != '', SpanAttributes['ltrain.wave'], ResourceAttributes['ltrain.wave'])) CODEC(T64, ZSTD(1)),
    MODIFY COLUMN `SampleIndex` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['ltrain.sample.index']) != '', SpanAttributes['ltrain.sample.index'], ResourceAttributes['ltrain.sample.index'])) CODEC(T64, ZSTD(1)),
    MODIFY COLUMN `InTokens` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['gen_ai.usage.input_tokens']) != '', SpanAttributes['gen_ai.usage.input_tokens'], SpanAttributes['llm.token_count.prompt'])) CODEC(T64, ZSTD(1)),
    MODIFY COLUMN `OutTokens` UInt32 MATERIALIZED toUInt32OrZero(if((SpanAttributes['gen_ai.usage.output_tokens']) != '', SpanAttributes['gen_ai.usage.output_tokens'], SpanAttributes['llm.token_count.completion'])) CODEC(T64, ZSTD(1)),
    MODIFY COLUMN `ToolName` LowCardinality(String) MATERIALIZED multiIf((SpanAttributes['gen_ai.tool.name']) != '', SpanAttributes['gen_ai.tool.name'], (SpanAttributes['tool.name']) != '', SpanAttributes['tool.name'], (SpanAttributes['mcp.tool.name']) != '', SpanAttributes['mcp.tool.name'], SpanAttributes['ai.toolCall.name']),
    MODIFY COLUMN `AgentName` LowCardinality(String) MATERIALIZED multiIf((SpanAttributes['gen_ai.agent.name']) != '', SpanAttributes['gen_ai.agent.name'], (SpanAttributes['langgraph.node']) != '', SpanAttributes['langgraph.node'], (SpanAttributes['langsmith.metadata.langgraph_node']) != '', SpanAttributes['langsmith.metadata.langgraph_node'], SpanAttributes['graph.node.id']),
    MODIFY COLUMN `SessionId` String MATERIALIZED multiIf((SpanAttributes['session.id']) != '', SpanAttributes['session.id'], (SpanAttributes['gen_ai.conversation.id']) != '', SpanAttributes['gen_ai.conversation.id'], (SpanAttributes['traceloop.association.properties.session_id']) != '', SpanAttributes['traceloop.association.properties.session_id'], (SpanAttributes['traceloop.association.properties.thread_id']) != '', SpanAttributes['traceloop.association.properties.thread_id'], (SpanAttributes['langsmith.metadata.session_id']) != '', SpanAttributes['langsmith.metadata.session_id'], (SpanAttributes['langsmith.metadata.thread_id']) != '', SpanAttributes['langsmith.metadata.thread_id'], (SpanAttributes['ai.telemetry.metadata.sessionId']) != '', SpanAttributes['ai.telemetry.metadata.sessionId'], (SpanAttributes['lmnr.association.properties.session_id']) != '', SpanAttributes['lmnr.association.properties.session_id'], SpanAttributes['thread_id']) CODEC(ZSTD(1)),
    MODIFY COLUMN `GenAiKind` LowCardinality(String) MATERIALIZED multiIf((SpanAttributes['llm.request.type']) != '', SpanAttributes['llm.request.type'], (SpanAttributes['openinference.span.kind']) != '', SpanAttributes['openinference.span.kind'], (SpanAttributes['langsmith.span.kind']) != '', SpanAttributes['langsmith.span.kind'], (SpanAttributes['langfuse.observation.type']) != '', SpanAttributes['langfuse.observation.type'], (SpanAttributes['agentops.span.kind']) != '', SpanAttributes['agentops.span.kind'], (SpanAttributes['traceloop.span.kind']) != '', SpanAttributes['traceloop.span.kind'], (SpanAttributes['ai.operationId']) != '', SpanAttributes['ai.operationId'], (SpanAttributes['mlflow.spanType']) != '', SpanAttributes['mlflow.spanType'], (SpanAttributes['lmnr.span.type']) != '', SpanAttributes['lmnr.span.type'], SpanAttributes['weave.span.kind']),
    MODIFY COLUMN `Outcome` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.rollout.outcome'],
    MODIFY COLUMN `EvaluationName` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.evaluation.name'],
    MODIFY COLUMN `EvaluationValue` String MATERIALIZED SpanAttributes['gen_ai.evaluation.score.value'] CODEC(ZSTD(1)),
    MODIFY COLUMN `EvaluationLabel` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.evaluation.score.label'],
    MODIFY COLUMN `EvaluationScope` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.reward.scope'];

CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otel_log_spans_mv
TO otel.otel_traces
DEFINER = CURRENT_USER SQL SECURITY DEFINER AS
SELECT
    fromUnixTimestamp64Nano(ended - nanoseconds) AS Timestamp,
    if(trace != '', trace, prompt_trace) AS TraceId,
    if((operation = 'invoke_agent') AND (prompt != ''), prompt_span, record_span) AS SpanId,
    multiIf(parent != '', parent, (operation != 'invoke_agent') AND (prompt != ''), prompt_span, '') AS ParentSpanId,
    event AS SpanName,
    'Internal' AS SpanKind,
    service AS ServiceName,
    resource AS ResourceAttributes,
    scope AS ScopeName,
    version AS ScopeVersion,
    mapUpdate(record, added) AS SpanAttributes,
    toUInt64(nanoseconds) AS Duration,
    if(failed, 'Error', 'Unset') AS StatusCode,
    if(failed, error, '') AS StatusMessage
FROM
(
    SELECT
        *,
        transform(event, ['qwen-code.user_prompt', 'qwen-code.api_response', 'qwen-code.api_error', 'qwen-code.tool_call', 'gemini_cli.user_prompt', 'gemini_cli.api_response', 'gemini_cli.api_error', 'gemini_cli.tool_call', 'codex.user_prompt', 'codex.sse_event', 'codex.api_request', 'codex.tool_result', 'claude_code.user_prompt', 'claude_code.api_request', 'claude_code.api_error', 'claude_code.assistant_response', 'claude_code.tool_result', 'claude_code.tool_decision'], ['invoke_agent', 'chat', 'chat', 'execute_tool', 'invoke_agent', 'chat', 'chat', 'execute_tool', 'invoke_agent', 'chat', 'chat', 'execute_tool', 'invoke_agent', 'chat', 'chat', 'chat', 'execute_tool', 'execute_tool'], '') AS operation,
        transform(event, ['qwen-code.user_prompt', 'qwen-code.api_response', 'qwen-code.api_error', 'qwen-code.tool_call', 'gemini_cli.user_prompt', 'gemini_cli.api_response', 'gemini_cli.api_error', 'gemini_cli.tool_call', 'codex.user_prompt', 'codex.sse_event', 'codex.api_request', 'codex.tool_result', 'claude_code.user_prompt', 'claude_code.api_request', 'claude_code.api_error', 'claude_code.assistant_response', 'claude_code.tool_result', 'claude_code.tool_decision'], ['qwen-code', 'qwen-code', 'qwen-code', 'qwen-code', 'gemini-cli', 'gemini-cli', 'gemini-cli', 'gemini-cli', 'codex', 'codex', 'codex', 'codex', 'claude-code', 'claude-code', 'claude-code', 'claude-code', 'claude-code', 'claude-code'], '') AS client,
        arrayFirst(each -> (each != ''), [record['session.id'], record['conversation.id']]) AS session,
        arrayFirst(each -> (each != ''), [record['prompt_id'], record['prompt.id']]) AS prompt,
        (session != '') OR (prompt != '') AS named,
        arrayFirst(each -> (each != ''), [record['error.type'], record['error_type']]) AS error_type,
        arrayFirst(each -> (each != ''), [record['error.message'], record['error_message'], record['error']]) AS error,
        (error_type != '') OR (error != '') OR ((record['success']) = 'false') OR ((record['decision']) = 'reject') OR JSONExtractBool(record['metadata'], 'isError') AS failed,
        if((toFloat64OrZero(record['duration_ms']) >= 0) AND (toFloat64OrZero(record['duration_ms']) <= 86400000), toInt64(toFloat64OrZero(record['duration_ms']) * 1000000.), 0) AS nanoseconds,
        lower(hex(sipHash64(event, ended, trace, parent, identity, mapSort(record)))) AS record_span,
        lower(hex(sipHash64('invoke_agent', session, prompt, identity))) AS prompt_span,
        lower(hex(sipHash128(session, prompt, identity, if(named, '', record_span)))) AS prompt_trace,
        mapFilter((name, value) -> (value != ''), CAST(map('ltrain.log.event', event, 'gen_ai.operation.name', operation, 'session.id', session, 'error.type', if(failed, if(error_type != '', error_type, 'error'), ''), 'gen_ai.request.model', multiIf(operation = 'chat', record['model'], ''), 'gen_ai.response.id', multiIf(operation = 'chat', arrayFirst(each -> (each != ''), [record['response_id'], record['request_id'], JSONExtractString(record['response_text'], 1, 'responseId')]), ''), 'gen_ai.usage.input_tokens', multiIf(operation = 'chat', arrayFirst(each -> (each != ''), [record['input_token_count'], record['input_tokens']]), ''), 'gen_ai.usage.output_tokens', multiIf(operation = 'chat', arrayFirst(each -> (each != ''), [record['output_token_count'], record['output_tokens']]), ''), 'gen_ai.usage.cache_read.input_tokens', multiIf(operation = 'chat', arrayFirst(each -> (each != ''), [record['cached_content_token_count'], record['cached_token_count'], record['cache_read_tokens']]), ''), 'gen_ai.usage.reasoning.output_tokens', multiIf(operation = 'chat', arrayFirst(each -> (each != ''), [record['thoughts_token_count'], record['reasoning_token_count']]), ''), 'gen_ai.response.finish_reasons', multiIf(operation = 'chat', record['finish_reasons'], ''), 'gen_ai.agent.name', multiIf(operation = 'invoke_agent', client, operation = 'chat', arrayFirst(each -> (each != ''), [record['subagent_name'], record['agent.name'], record['agent_name']]), operation = 'execute_tool', arrayFirst(each -> (each != ''), [record['subagent_name'], record['agent.name'], record['agent_name']]), ''), 'gen_ai.tool.name', multiIf(operation = 'execute_tool', arrayFirst(each -> (each != ''), [record['function_name'], record['tool_name']]), ''), 'gen_ai.tool.call.id', multiIf(operation = 'execute_tool', arrayFirst(each -> (each != ''), [record['call_id'], record['tool_use_id']]), ''), 'gen_ai.tool.call.arguments', multiIf(operation = 'execute_tool', arrayFirst(each -> (each != ''), [record['function_args'], record['arguments'], record['tool_input'], record['tool_parameters']]), ''), 'gen_ai.tool.call.result', multiIf(operation = 'execute_tool', record['output'], '')), 'Map(LowCardinality(String), String)')) AS added
    FROM
    (
        SELECT
            arrayFirst(each -> (each IN ('claude_code.api_error', 'claude_code.api_request', 'claude_code.assistant_response', 'claude_code.tool_decision', 'claude_code.tool_result', 'claude_code.user_prompt', 'codex.api_request', 'codex.sse_event', 'codex.tool_result', 'codex.user_prompt', 'gemini_cli.api_error', 'gemini_cli.api_response', 'gemini_cli.tool_call', 'gemini_cli.user_prompt', 'qwen-code.api_error', 'qwen-code.api_response', 'qwen-code.tool_call', 'qwen-code.user_prompt')), [EventName, LogAttributes['event.name'], Body]) AS event,
            toUnixTimestamp64Nano(Timestamp) AS ended,
            TraceId AS trace,
            SpanId AS parent,
            concat(RolloutId, '.', Attempt) AS identity,
            ServiceName AS service,
            ResourceAttributes AS resource,
            ScopeName AS scope,
            ScopeVersion AS version,
            LogAttributes AS record
        FROM otel.otel_logs
        WHERE (event != '') AND (ended > 0) AND ((event = 'qwen-code.user_prompt') OR (event = 'qwen-code.api_response') OR (event = 'qwen-code.api_error') OR (event = 'qwen-code.tool_call') OR (event = 'gemini_cli.user_prompt') OR (event = 'gemini_cli.api_response') OR (event = 'gemini_cli.api_error') OR (event = 'gemini_cli.tool_call') OR (event = 'codex.user_prompt') OR ((event = 'codex.sse_event') AND (((record['input_token_count']) != '') OR ((record['error.message']) != ''))) OR ((event = 'codex.api_request') AND ((record['error.message']) != '')) OR (event = 'codex.tool_result') OR (event = 'claude_code.user_prompt') OR (event = 'claude_code.api_request') OR (event = 'claude_code.api_error') OR ((event = 'claude_code.assistant_response') AND ((record['request_id']) != '')) OR (event = 'claude_code.tool_result') OR ((event = 'claude_code.tool_decision') AND ((record['decision']) = 'reject')))
    )
);

CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otel_trace_executions_mv
TO otel.otel_trace_executions
DEFINER = CURRENT_USER SQL SECURITY DEFINER AS
SELECT DISTINCT
    TraceId,
    RunId,
    RolloutId,
    Attempt
FROM otel.otel_traces
WHERE RolloutId != '';

CREATE OR REPLACE VIEW otel.logs AS
SELECT
    *,
    RunId,
    RolloutId,
    Attempt,
    Sender,
    IngestedAt
FROM otel.otel_logs
FINAL;

CREATE OR REPLACE VIEW otel.metrics_exponential_histogram AS
SELECT
    *,
    IngestedAt
FROM otel.otel_metrics_exponential_histogram
FINAL;

CREATE OR REPLACE VIEW otel.metrics_gauge AS
SELECT
    *,
    IngestedAt
FROM otel.otel_metrics_gauge
FINAL;

CREATE OR REPLACE VIEW otel.metrics_histogram AS
SELECT
    *,
    IngestedAt
FROM otel.otel_metrics_histogram
FINAL;

CREATE OR REPLACE VIEW otel.metrics_sum AS
SELECT
    *,
    IngestedAt
FROM otel.otel_metrics_sum
FINAL;

CREATE OR REPLACE VIEW otel.collector_health AS
SELECT
    name,
    labels,
    argMax(value, time) AS value,
    max(time) AS measured
FROM
(
    SELECT
        MetricName AS name,
        Attributes AS labels,
        Value AS value,
        TimeUnix AS time
    FROM otel.metrics_gauge
    WHERE (ServiceName = 'ltrain-collector') AND ((ResourceAttributes['ltrain.sender']) IN ('service', 'admin', 'local')) AND (TimeUnix > (now() - toIntervalDay(1)))
    UNION ALL
    SELECT
        MetricName,
        Attributes,
        Value,
        TimeUnix
    FROM otel.metrics_sum
    WHERE (ServiceName = 'ltrain-collector') AND ((ResourceAttributes['ltrain.sender']) IN ('service', 'admin', 'local')) AND (TimeUnix > (now() - toIntervalDay(1)))
    UNION ALL
    SELECT
        concat(MetricName, part.1),
        Attributes,
        part.2,
        TimeUnix
    FROM otel.metrics_histogram
    ARRAY JOIN [('_count', toFloat64(Count)), ('_sum', Sum)] AS part
    WHERE (ServiceName = 'ltrain-collector') AND ((ResourceAttributes['ltrain.sender']) IN ('service', 'admin', 'local')) AND (TimeUnix > (now() - toIntervalDay(1)))
)
GROUP BY
    name,
    labels
ORDER BY
    name ASC,
    toString(labels) ASC;

CREATE OR REPLACE VIEW otel.metrics_summary AS
SELECT
    *,
    IngestedAt
FROM otel.otel_metrics_summary
FINAL;

CREATE OR REPLACE VIEW otel.spans AS
SELECT
    *,
    RunId,
    RolloutId,
    Attempt,
    Sender,
    TaskId,
    Domain,
    Mode,
    Wave,
    SampleIndex,
    PolicyName,
    PolicyVersion,
    GenAiOp,
    GenAiModel,
    InTokens,
    OutTokens,
    ToolName,
    AgentName,
    SessionId,
    GenAiKind,
    Outcome,
    EvaluationName,
    EvaluationValue,
    EvaluationLabel,
    EvaluationScope,
    IngestedAt
FROM otel.otel_traces
FINAL;

CREATE OR REPLACE VIEW otel.evaluations AS
SELECT
    judged,
    run,
    mode,
    wave,
    task,
    rollout,
    attempt,
    if(named != '', named, 'reward') AS name,
    toFloat64OrNull(score) AS value,
    label,
    explanation,
    scope,
    multiIf((sender NOT IN ('service', 'admin', 'local')), 'agent', scope_name = 'ltrain.runner', 'runner', scope_name = 'ltrain.gateway', 'gateway', scope_name = 'ltrain.person', 'person', 'agent') AS source,
    trace,
    span,
    parent
FROM
(
    SELECT
        Timestamp AS judged,
        RunId AS run,
        Mode AS mode,
        Wave AS wave,
        TaskId AS task,
        RolloutId AS rollout,
        Attempt AS attempt,
        toString(EvaluationName) AS named,
        EvaluationValue AS score,
        toString(EvaluationLabel) AS label,
        SpanAttributes['gen_ai.evaluation.explanation'] AS explanation,
        toString(EvaluationScope) AS scope,
        toString(Sender) AS sender,
        ScopeName AS scope_name,
        TraceId AS trace,
        SpanId AS span,
        ParentSpanId AS parent
    FROM otel.spans
    WHERE SpanName = 'gen_ai.evaluation.result'
    UNION ALL
    SELECT
        event.1,
        RunId,
        Mode,
        Wave,
        TaskId,
        RolloutId,
        Attempt,
        (event.3)['gen_ai.evaluation.name'],
        (event.3)['gen_ai.evaluation.score.value'],
        (event.3)['gen_ai.evaluation.score.label'],
        (event.3)['gen_ai.evaluation.explanation'],
        multiIf(((event.3)['ltrain.reward.scope']) != '', (event.3)['ltrain.reward.scope'], (((GenAiOp IN ('chat', 'text_completion', 'generate_content')) OR (lower(extract(toString(GenAiKind), '([^."]+)"?$')) IN ('llm', 'generation', 'dogenerate', 'dostream', 'chat', 'completion', 'chat_model'))) OR ((GenAiOp = 'execute_tool') OR (lower(extract(toString(GenAiKind), '([^."]+)"?$')) IN ('tool', 'toolcall'))) OR (GenAiOp IN ('retrieval', 'embeddings')) OR (lower(extract(toString(GenAiKind), '([^."]+)"?$')) IN ('retriever', 'retrieval', 'embedding'))), 'call', ''),
        toString(Sender),
        ScopeName,
        TraceId,
        SpanId,
        SpanId
    FROM otel.spans
    ARRAY JOIN arrayZip(`Events.Timestamp`, `Events.Name`, `Events.Attributes`) AS event
    WHERE has(`Events.Name`, 'gen_ai.evaluation.result') AND ((event.2) = 'gen_ai.evaluation.result')
    UNION ALL
    SELECT
        Timestamp,
        RunId,
        LogAttributes['ltrain.mode'],
        toUInt32OrZero(LogAttributes['ltrain.wave']),
        LogAttributes['ltrain.task.id'],
        RolloutId,
        Attempt,
        LogAttributes['gen_ai.evaluation.name'],
        LogAttributes['gen_ai.evaluation.score.value'],
        LogAttributes['gen_ai.evaluation.score.label'],
        LogAttributes['gen_ai.evaluation.explanation'],
        LogAttributes['ltrain.reward.scope'],
        toString(Sender),
        ScopeName,
        TraceId,
        SpanId,
        SpanId
    FROM otel.logs
    WHERE (EventName = 'gen_ai.evaluation.result') OR ((LogAttributes['event.name']) = 'gen_ai.evaluation.result')
);

CREATE OR REPLACE VIEW otel.llm_calls AS
SELECT
    Timestamp AS started,
    RunId AS run,
    Mode AS mode,
    Wave AS wave,
    TaskId AS task,
    RolloutId AS rollout,
    Attempt AS attempt,
    PolicyName AS policy,
    PolicyVersion AS version,
    GenAiModel AS model,
    InTokens AS input_tokens,
    OutTokens AS output_tokens,
    toFloat64OrNull(SpanAttributes['gen_ai.request.temperature']) AS temperature,
    SpanAttributes['gen_ai.response.finish_reasons'] AS finish_reasons,
    SpanAttributes['gen_ai.input.messages'] AS input,
    SpanAttributes['gen_ai.output.messages'] AS output,
    (SpanAttributes['ltrain.delivered']) != 'false' AS delivered,
    StatusCode AS status,
    Duration / 1000000000. AS duration,
    TraceId AS trace,
    SpanId AS span
FROM otel.spans
WHERE (ScopeName = 'ltrain.gateway') AND (Sender IN ('service', 'admin', 'local')) AND (GenAiOp IN ('chat', 'text_completion'));

CREATE OR REPLACE VIEW otel.reward_by_task AS
SELECT
    run,
    mode,
    wave,
    task,
    name,
    source,
    min(judged) AS first_judged,
    count() AS judged_times,
    avg(value) AS mean,
    min(value) AS lowest,
    max(value) AS highest,
    stddevPop(value) AS spread
FROM otel.evaluations
WHERE isNotNull(value)
GROUP BY
    run,
    mode,
    wave,
    task,
    name,
    source;

CREATE OR REPLACE VIEW otel.rollouts AS
SELECT
    Timestamp AS closed,
    RunId AS run,
    Mode AS mode,
    Wave AS wave,
    TaskId AS task,
    SampleIndex AS sample,
    RolloutId AS rollout,
    Attempt AS attempt,
    Outcome AS outcome,
    SpanAttributes['ltrain.rollout.reason'] AS reason,
    toUInt32OrZero(SpanAttributes['ltrain.rollout.llm_calls']) AS llm_calls,
    Duration / 1000000000. AS duration
FROM otel.spans
WHERE (SpanName = 'ltrain.rollout') AND (Sender IN ('service', 'admin', 'local'));

CREATE OR REPLACE VIEW otel.token_use AS
SELECT
    run,
    policy,
    version,
    mode,
    count() AS calls,
    sum(calls.input_tokens) AS input_tokens,
    sum(calls.output_tokens) AS output_tokens,
    avg(calls.output_tokens) AS mean_output,
    min(started) AS first_call,
    max(started) AS last_call
FROM otel.llm_calls AS calls
GROUP BY
    run,
    policy,
    version,
    mode;

CREATE OR REPLACE VIEW otel.tool_calls AS
SELECT
    Timestamp AS started,
    RunId AS run,
    Mode AS mode,
    Wave AS wave,
    TaskId AS task,
    RolloutId AS rollout,
    Attempt AS attempt,
    if(ToolName != '', toString(ToolName), replaceRegexpOne(toString(SpanName), '[.]tool$', '')) AS tool,
    if((StatusCode = 'Error') OR ((SpanAttributes['error.type']) != ''), 'error', 'ok') AS status,
    if((SpanAttributes['error.type']) != '', SpanAttributes['error.type'], splitByChar('\n', StatusMessage)[1]) AS error,
    if(ScopeName = 'ltrain.gateway', NULL, Duration / 1000000000.) AS duration,
    TraceId AS trace,
    SpanId AS span
FROM otel.spans
WHERE ((GenAiOp = 'execute_tool') OR (lower(extract(toString(GenAiKind), '([^."]+)"?$')) IN ('tool', 'toolcall')));

CREATE OR REPLACE VIEW otel.slow_tools AS
SELECT
    run,
    tool,
    count() AS calls,
    countIf(status = 'error') AS errors,
    quantileExact(0.5)(duration) AS median,
    quantileExact(0.95)(duration) AS p95,
    max(duration) AS slowest,
    argMax(span, duration) AS slowest_span,
    sum(duration) AS total
FROM otel.tool_calls
GROUP BY
    run,
    tool
ORDER BY p95 DESC;

CREATE OR REPLACE VIEW otel.tool_status AS
SELECT
    run,
    tool,
    status,
    count() AS calls,
    count() / sum(count()) OVER (PARTITION BY run, tool) AS share,
    avg(duration) AS mean_duration
FROM otel.tool_calls
GROUP BY
    run,
    tool,
    status;

CREATE OR REPLACE VIEW otel.trace_executions AS
SELECT DISTINCT
    TraceId,
    RunId,
    RolloutId,
    Attempt
FROM otel.otel_trace_executions;
