-- Each record once, with ltrain's columns.
CREATE OR REPLACE VIEW otel.logs AS
SELECT *, RunId, RolloutId, Attempt, IngestedAt, Sender FROM {table} FINAL;
