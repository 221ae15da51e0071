-- The same views over a table that the exporter created: ltrain's columns are computed and duplicate
-- spans removed, which reads more.
CREATE OR REPLACE VIEW otel.spans AS
SELECT
    *,
    if(SpanAttributes['ltrain.run.id'] != '', SpanAttributes['ltrain.run.id'], ResourceAttributes['ltrain.run.id']) AS RunId,
    multiIf(SpanAttributes['ltrain.rollout.id'] != '', SpanAttributes['ltrain.rollout.id'], ResourceAttributes['ltrain.rollout.id'] != '', ResourceAttributes['ltrain.rollout.id'], ResourceAttributes['agentlightning.rollout_id']) AS RolloutId,
    multiIf(SpanAttributes['ltrain.attempt.id'] != '', SpanAttributes['ltrain.attempt.id'], ResourceAttributes['ltrain.attempt.id'] != '', ResourceAttributes['ltrain.attempt.id'], ResourceAttributes['agentlightning.attempt_id']) AS Attempt,
    SpanAttributes['ltrain.task.id'] AS TaskId,
    SpanAttributes['ltrain.domain'] AS Domain,
    SpanAttributes['ltrain.mode'] AS Mode,
    toUInt32OrZero(SpanAttributes['ltrain.wave']) AS Wave,
    SpanAttributes['ltrain.policy.name'] AS PolicyName,
    toUInt32OrZero(SpanAttributes['ltrain.policy.version']) AS PolicyVersion,
    SpanAttributes['gen_ai.operation.name'] AS GenAiOp,
    if(SpanAttributes['gen_ai.response.model'] != '', SpanAttributes['gen_ai.response.model'], SpanAttributes['gen_ai.request.model']) AS GenAiModel,
    toUInt32OrZero(SpanAttributes['gen_ai.usage.input_tokens']) AS InTokens,
    toUInt32OrZero(SpanAttributes['gen_ai.usage.output_tokens']) AS OutTokens,
    SpanAttributes['gen_ai.tool.name'] AS ToolName,
    toDateTime64(0, 3) AS IngestedAt,
    ResourceAttributes['ltrain.sender'] AS Sender
FROM {table}
LIMIT 1 BY TraceId, SpanId;

CREATE OR REPLACE VIEW otel.trace_executions AS
SELECT DISTINCT TraceId, RunId, RolloutId, Attempt FROM otel.spans WHERE RolloutId != '';
