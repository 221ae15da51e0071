"""The check of a GPU: stages that measure a machine, a table of their rows, and JSON."""
