-- Each data point once, our column included.
CREATE OR REPLACE VIEW {view} AS
SELECT *, IngestedAt FROM {table} FINAL;
