-- The same view over a table that the exporter created: ltrain's columns are computed and duplicate
-- records removed, which reads more.
CREATE OR REPLACE VIEW otel.logs AS
SELECT
    *,
    {logs_values},
    toDateTime64(0, 3) AS IngestedAt
FROM {table}
LIMIT 1 BY cityHash64(*);
