-- Each data point once, with ltrain's column.
CREATE OR REPLACE VIEW {view} AS
SELECT *, IngestedAt FROM {table} FINAL;
