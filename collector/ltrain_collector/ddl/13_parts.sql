-- Merges wait until the parts together have ten times the size of the largest: they write a row
-- fewer times, and leave a few more parts. Parts of up to 64 MiB (before compression) keep all
-- columns in one file: with a file for each, an insert creates some 200 files.
ALTER TABLE otel.otel_traces MODIFY SETTING
    merge_selector_base = 10,
    min_bytes_for_wide_part = 67108864;

ALTER TABLE otel.otel_trace_executions MODIFY SETTING merge_selector_base = 10;
