-- Made from what the collector makes in a new store, by `make docs`; changes go there.

CREATE DATABASE IF NOT EXISTS otel;

CREATE TABLE IF NOT EXISTS otel.otel_trace_executions
(
    `TraceId` String,
    `RunId` LowCardinality(String),
    `RolloutId` String,
    `Attempt` LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (TraceId, RunId, RolloutId, Attempt)
SETTINGS index_granularity = 8192;

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
    `TaskId` String MATERIALIZED SpanAttributes['ltrain.task.id'] CODEC(ZSTD(1)),
    `Mode` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.mode'],
    `Wave` UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['ltrain.wave']) CODEC(T64, ZSTD(1)),
    `PolicyName` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.policy.name'],
    `PolicyVersion` UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['ltrain.policy.version']) CODEC(T64, ZSTD(1)),
    `GenAiOp` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.operation.name'],
    `GenAiModel` LowCardinality(String) MATERIALIZED if((SpanAttributes['gen_ai.response.model']) != '', SpanAttributes['gen_ai.response.model'], SpanAttributes['gen_ai.request.model']),
    `InTokens` UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['gen_ai.usage.input_tokens']) CODEC(T64, ZSTD(1)),
    `OutTokens` UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['gen_ai.usage.output_tokens']) CODEC(T64, ZSTD(1)),
    `ToolName` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.tool.name'],
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
SETTINGS index_granularity_bytes = 1048576, index_granularity = 8192;

ALTER TABLE otel.otel_traces
    ADD COLUMN IF NOT EXISTS `TaskId` String MATERIALIZED SpanAttributes['ltrain.task.id'] CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `Mode` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.mode'],
    ADD COLUMN IF NOT EXISTS `Wave` UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['ltrain.wave']) CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `PolicyName` LowCardinality(String) MATERIALIZED SpanAttributes['ltrain.policy.name'],
    ADD COLUMN IF NOT EXISTS `PolicyVersion` UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['ltrain.policy.version']) CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `GenAiOp` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.operation.name'],
    ADD COLUMN IF NOT EXISTS `GenAiModel` LowCardinality(String) MATERIALIZED if((SpanAttributes['gen_ai.response.model']) != '', SpanAttributes['gen_ai.response.model'], SpanAttributes['gen_ai.request.model']),
    ADD COLUMN IF NOT EXISTS `InTokens` UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['gen_ai.usage.input_tokens']) CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `OutTokens` UInt32 MATERIALIZED toUInt32OrZero(SpanAttributes['gen_ai.usage.output_tokens']) CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `ToolName` LowCardinality(String) MATERIALIZED SpanAttributes['gen_ai.tool.name'],
    ADD COLUMN IF NOT EXISTS `IngestedAt` DateTime64(3) MATERIALIZED now64(3) CODEC(Delta(8), ZSTD(1)),
    ADD COLUMN IF NOT EXISTS `Precedence` UInt64 MATERIALIZED if(((SpanAttributes['ltrain.truncated']) NOT IN ('', 'false')), 0, bitShiftLeft(toUInt64(1), 62)) + (bitShiftLeft(toUInt64(1), 61) - toUInt64(toUnixTimestamp64Milli(now64(3)))) CODEC(ZSTD(1));

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

CREATE OR REPLACE VIEW otel.spans AS
SELECT
    *,
    RunId,
    RolloutId,
    Attempt,
    TaskId,
    Mode,
    Wave,
    PolicyName,
    PolicyVersion,
    GenAiOp,
    GenAiModel,
    InTokens,
    OutTokens,
    ToolName,
    IngestedAt
FROM otel.otel_traces
FINAL;

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
WHERE (ScopeName = 'ltrain.gateway') AND (GenAiOp != '');

CREATE OR REPLACE VIEW otel.rewards AS
SELECT
    Timestamp AS judged,
    RunId AS run,
    Mode AS mode,
    Wave AS wave,
    TaskId AS task,
    RolloutId AS rollout,
    Attempt AS attempt,
    if((SpanAttributes['gen_ai.evaluation.name']) != '', SpanAttributes['gen_ai.evaluation.name'], 'reward') AS name,
    toFloat64OrNull(SpanAttributes['gen_ai.evaluation.score.value']) AS value,
    SpanAttributes['gen_ai.evaluation.score.label'] AS label,
    SpanAttributes['gen_ai.evaluation.explanation'] AS explanation,
    SpanAttributes['ltrain.reward.scope'] AS scope,
    multiIf(ScopeName = 'ltrain.runner', 'runner', ScopeName = 'ltrain.gateway', 'gateway', 'agent') AS source,
    TraceId AS trace,
    SpanId AS span,
    ParentSpanId AS parent
FROM otel.spans
WHERE SpanName = 'gen_ai.evaluation.result';

CREATE OR REPLACE VIEW otel.rollouts AS
SELECT
    Timestamp AS closed,
    RunId AS run,
    Mode AS mode,
    Wave AS wave,
    TaskId AS task,
    toUInt32OrZero(SpanAttributes['ltrain.sample.index']) AS sample,
    RolloutId AS rollout,
    Attempt AS attempt,
    SpanAttributes['ltrain.rollout.outcome'] AS outcome,
    SpanAttributes['ltrain.rollout.reason'] AS reason,
    toUInt32OrZero(SpanAttributes['ltrain.rollout.llm_calls']) AS llm_calls,
    Duration / 1000000000. AS duration
FROM otel.spans
WHERE SpanName = 'ltrain.rollout';

CREATE OR REPLACE VIEW otel.trace_executions AS
SELECT DISTINCT
    TraceId,
    RunId,
    RolloutId,
    Attempt
FROM otel.otel_trace_executions;
