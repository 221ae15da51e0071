"""Rules: SQL or Python over calls and executions, the ready rules, and the columns they may use."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.rules import library, python_rules, sql
    from ltrain_transforms.rules.derived_columns import (
        INPUTS,
        add_derived_columns,
        add_schema_match,
    )
    from ltrain_transforms.rules.tool_schema import schema_error

open_face(__name__)
