"""Rules: SQL or Python over calls and executions, the ready rules, and the columns they may use."""

from ltrain_transforms.rules import library, python_rules, sql
from ltrain_transforms.rules.derived_columns import INPUTS, add_derived_columns, add_schema_match
from ltrain_transforms.rules.tool_schema import schema_error

__all__ = [
    "INPUTS",
    "add_derived_columns",
    "add_schema_match",
    "library",
    "python_rules",
    "schema_error",
    "sql",
]
