-- The same view over a table that the exporter created: ltrain's columns are computed and duplicate
-- records removed, which reads more.
CREATE OR REPLACE VIEW otel.logs AS
SELECT
    *,
    if(LogAttributes['ltrain.run.id'] != '', LogAttributes['ltrain.run.id'], ResourceAttributes['ltrain.run.id']) AS RunId,
    multiIf(LogAttributes['ltrain.rollout.id'] != '', LogAttributes['ltrain.rollout.id'], ResourceAttributes['ltrain.rollout.id'] != '', ResourceAttributes['ltrain.rollout.id'], ResourceAttributes['agentlightning.rollout_id']) AS RolloutId,
    multiIf(LogAttributes['ltrain.attempt.id'] != '', LogAttributes['ltrain.attempt.id'], ResourceAttributes['ltrain.attempt.id'] != '', ResourceAttributes['ltrain.attempt.id'], ResourceAttributes['agentlightning.attempt_id']) AS Attempt,
    toDateTime64(0, 3) AS IngestedAt,
    ResourceAttributes['ltrain.sender'] AS Sender
FROM {table}
LIMIT 1 BY cityHash64(*);
