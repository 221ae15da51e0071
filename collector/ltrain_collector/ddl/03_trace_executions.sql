-- The executions of a trace, for spans of the trace that name none.
CREATE TABLE IF NOT EXISTS otel.otel_trace_executions (
    TraceId String,
    RunId LowCardinality(String),
    RolloutId String,
    Attempt LowCardinality(String)
) ENGINE = ReplacingMergeTree
ORDER BY (TraceId, RunId, RolloutId, Attempt);

CREATE MATERIALIZED VIEW IF NOT EXISTS otel.otel_trace_executions_mv
TO otel.otel_trace_executions AS
SELECT DISTINCT TraceId, RunId, RolloutId, Attempt
FROM otel.otel_traces
WHERE RolloutId != '';
