-- The view for users and programs: each span once, with ltrain's columns, which `SELECT *` of the
-- table omits.
CREATE OR REPLACE VIEW otel.spans AS
SELECT
    *, {traces_names}, IngestedAt
FROM otel.otel_traces FINAL;

CREATE OR REPLACE VIEW otel.trace_executions AS
SELECT DISTINCT TraceId, RunId, RolloutId, Attempt FROM otel.otel_trace_executions;
