-- Each record once, with ltrain's columns.
CREATE OR REPLACE VIEW otel.logs AS
SELECT *, {logs_names}, IngestedAt FROM {table} FINAL;
