-- Each record once, our columns included.
CREATE OR REPLACE VIEW otel.logs AS
SELECT *, RunId, RolloutId, Attempt, IngestedAt, Sender FROM {table} FINAL;
