-- Views that have another name now: otel.rewards is otel.evaluations.
DROP VIEW IF EXISTS otel.rewards;
