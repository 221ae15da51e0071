-- The view for users and programs: each span once, with ltrain's columns, which `SELECT *` of the
-- table omits.
CREATE OR REPLACE VIEW otel.spans AS
SELECT
    *, RunId, RolloutId, Attempt, TaskId, Domain, Mode, Wave, PolicyName, PolicyVersion, GenAiOp,
    GenAiModel, InTokens, OutTokens, ToolName, IngestedAt, Sender
FROM otel.otel_traces FINAL;

CREATE OR REPLACE VIEW otel.trace_executions AS
SELECT DISTINCT TraceId, RunId, RolloutId, Attempt FROM otel.otel_trace_executions;
