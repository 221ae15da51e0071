-- Reports on tools, tokens, rewards and the collector.
CREATE OR REPLACE VIEW otel.tool_calls AS
SELECT
    Timestamp AS started,
    RunId AS run, Mode AS mode, Wave AS wave, TaskId AS task, RolloutId AS rollout, Attempt AS attempt,
    {tool_name} AS tool,
    if(StatusCode = 'Error' OR SpanAttributes['error.type'] != '', 'error', 'ok') AS status,
    if(SpanAttributes['error.type'] != '', SpanAttributes['error.type'], splitByChar('\n', StatusMessage)[1]) AS error,
    if(ScopeName = 'ltrain.gateway', NULL, Duration / 1e9) AS duration,
    TraceId AS trace, SpanId AS span
FROM otel.spans
WHERE {tool};

CREATE OR REPLACE VIEW otel.tool_status AS
SELECT
    run, tool, status, count() AS calls,
    count() / sum(count()) OVER (PARTITION BY run, tool) AS share,
    avg(duration) AS mean_duration
FROM otel.tool_calls
GROUP BY run, tool, status;

CREATE OR REPLACE VIEW otel.slow_tools AS
SELECT
    run, tool, count() AS calls, countIf(status = 'error') AS errors,
    quantileExact(0.5)(duration) AS median, quantileExact(0.95)(duration) AS p95,
    max(duration) AS slowest, argMax(span, duration) AS slowest_span, sum(duration) AS total
FROM otel.tool_calls
GROUP BY run, tool
ORDER BY p95 DESC;

CREATE OR REPLACE VIEW otel.token_use AS
SELECT
    run, policy, version, mode, count() AS calls,
    sum(calls.input_tokens) AS input_tokens, sum(calls.output_tokens) AS output_tokens,
    avg(calls.output_tokens) AS mean_output, min(started) AS first_call, max(started) AS last_call
FROM otel.llm_calls AS calls
GROUP BY run, policy, version, mode;

CREATE OR REPLACE VIEW otel.reward_by_task AS
SELECT
    run, mode, wave, task, name, source, min(judged) AS first_judged,
    count() AS judged_times, avg(value) AS mean, min(value) AS lowest, max(value) AS highest,
    stddevPop(value) AS spread
FROM otel.evaluations
WHERE isNotNull(value)
GROUP BY run, mode, wave, task, name, source;

CREATE OR REPLACE VIEW otel.collector_health AS
SELECT
    name, labels, argMax(value, time) AS value, max(time) AS measured
FROM (
    SELECT MetricName AS name, Attributes AS labels, Value AS value, TimeUnix AS time
    FROM otel.metrics_gauge WHERE ServiceName = 'ltrain-collector' AND ResourceAttributes['ltrain.sender'] IN ('service', 'admin', 'local') AND TimeUnix > now() - INTERVAL 1 DAY
    UNION ALL
    SELECT MetricName, Attributes, Value, TimeUnix
    FROM otel.metrics_sum WHERE ServiceName = 'ltrain-collector' AND ResourceAttributes['ltrain.sender'] IN ('service', 'admin', 'local') AND TimeUnix > now() - INTERVAL 1 DAY
    UNION ALL
    SELECT concat(MetricName, part.1), Attributes, part.2, TimeUnix
    FROM otel.metrics_histogram ARRAY JOIN [('_count', toFloat64(Count)), ('_sum', Sum)] AS part
    WHERE ServiceName = 'ltrain-collector' AND ResourceAttributes['ltrain.sender'] IN ('service', 'admin', 'local') AND TimeUnix > now() - INTERVAL 1 DAY
)
GROUP BY name, labels
ORDER BY name, toString(labels);
