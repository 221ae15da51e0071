-- The same views over a table that the exporter created: ltrain's columns are computed and duplicate
-- spans removed, which reads more.
CREATE OR REPLACE VIEW otel.spans AS
SELECT
    *,
    {traces_values},
    toDateTime64(0, 3) AS IngestedAt
FROM {table}
LIMIT 1 BY TraceId, SpanId;

CREATE OR REPLACE VIEW otel.trace_executions AS
SELECT DISTINCT TraceId, RunId, RolloutId, Attempt FROM otel.spans WHERE RolloutId != '';
