-- Views for users: one row per closed attempt, per evaluation and per call that the gateway answered.
-- Outcomes and gateway calls are read only from the senders that a recipe trusts by default.
CREATE OR REPLACE VIEW otel.rollouts AS
SELECT
    Timestamp AS closed,
    RunId AS run, Mode AS mode, Wave AS wave, TaskId AS task,
    SampleIndex AS sample,
    RolloutId AS rollout, Attempt AS attempt,
    Outcome AS outcome,
    SpanAttributes['ltrain.rollout.reason'] AS reason,
    toUInt32OrZero(SpanAttributes['ltrain.rollout.llm_calls']) AS llm_calls,
    Duration / 1e9 AS duration
FROM otel.spans
WHERE SpanName = 'ltrain.rollout' AND Sender IN ('service', 'admin', 'local');

-- An evaluation is a span, an event of the span that it judges, or a log record. An event without a
-- scope judges the call if its span is one, as in a dataset.
CREATE OR REPLACE VIEW otel.evaluations AS
SELECT
    judged, run, mode, wave, task, rollout, attempt,
    if(named != '', named, 'reward') AS name,
    toFloat64OrNull(score) AS value,
    label, explanation, scope,
    multiIf(
        sender NOT IN ('service', 'admin', 'local'), 'agent',
        scope_name = 'ltrain.runner', 'runner',
        scope_name = 'ltrain.gateway', 'gateway',
        scope_name = 'ltrain.person', 'person',
        'agent'
    ) AS source,
    trace, span, parent
FROM (
    SELECT
        Timestamp AS judged,
        RunId AS run, Mode AS mode, Wave AS wave, TaskId AS task, RolloutId AS rollout, Attempt AS attempt,
        toString(EvaluationName) AS named, EvaluationValue AS score, toString(EvaluationLabel) AS label,
        SpanAttributes['gen_ai.evaluation.explanation'] AS explanation, toString(EvaluationScope) AS scope,
        toString(Sender) AS sender, ScopeName AS scope_name,
        TraceId AS trace, SpanId AS span, ParentSpanId AS parent
    FROM otel.spans WHERE SpanName = 'gen_ai.evaluation.result'
    UNION ALL
    SELECT
        event.1, RunId, Mode, Wave, TaskId, RolloutId, Attempt,
        event.3['gen_ai.evaluation.name'], event.3['gen_ai.evaluation.score.value'], event.3['gen_ai.evaluation.score.label'],
        event.3['gen_ai.evaluation.explanation'],
        multiIf(
            event.3['ltrain.reward.scope'] != '', event.3['ltrain.reward.scope'],
            {component}, 'call',
            ''
        ),
        toString(Sender), ScopeName, TraceId, SpanId, SpanId
    FROM otel.spans
    ARRAY JOIN arrayZip(`Events.Timestamp`, `Events.Name`, `Events.Attributes`) AS event
    WHERE has(`Events.Name`, 'gen_ai.evaluation.result') AND event.2 = 'gen_ai.evaluation.result'
    UNION ALL
    SELECT
        Timestamp, RunId, LogAttributes['ltrain.mode'], toUInt32OrZero(LogAttributes['ltrain.wave']),
        LogAttributes['ltrain.task.id'], RolloutId, Attempt,
        LogAttributes['gen_ai.evaluation.name'], LogAttributes['gen_ai.evaluation.score.value'], LogAttributes['gen_ai.evaluation.score.label'],
        LogAttributes['gen_ai.evaluation.explanation'], LogAttributes['ltrain.reward.scope'],
        toString(Sender), ScopeName, TraceId, SpanId, SpanId
    FROM otel.logs
    WHERE EventName = 'gen_ai.evaluation.result' OR LogAttributes['event.name'] = 'gen_ai.evaluation.result'
);

CREATE OR REPLACE VIEW otel.llm_calls AS
SELECT
    Timestamp AS started,
    RunId AS run, Mode AS mode, Wave AS wave, TaskId AS task, RolloutId AS rollout, Attempt AS attempt,
    PolicyName AS policy, PolicyVersion AS version, GenAiModel AS model,
    InTokens AS input_tokens, OutTokens AS output_tokens,
    toFloat64OrNull(SpanAttributes['gen_ai.request.temperature']) AS temperature,
    SpanAttributes['gen_ai.response.finish_reasons'] AS finish_reasons,
    SpanAttributes['gen_ai.input.messages'] AS input,
    SpanAttributes['gen_ai.output.messages'] AS output,
    SpanAttributes['ltrain.delivered'] != 'false' AS delivered,
    StatusCode AS status,
    Duration / 1e9 AS duration,
    TraceId AS trace, SpanId AS span
FROM otel.spans
WHERE ScopeName = 'ltrain.gateway' AND Sender IN ('service', 'admin', 'local') AND GenAiOp IN ('chat', 'text_completion');
