-- The same view over a table that the exporter created, which reads more.
CREATE OR REPLACE VIEW {view} AS
SELECT *, toDateTime64(0, 3) AS IngestedAt
FROM {table}
LIMIT 1 BY cityHash64(*);
