"""`[[source.dialect]]`: faults are errors before anything is read."""

from typing import Any

import pytest
from pydantic import ValidationError

from ltrain_transforms.recipe import DeclaredDialect, Source, split_source


def declared(**changes: Any) -> DeclaredDialect:
    values = {"kind": "llm", "scope": "acme", "fields": {"model": "acme.model"}} | changes
    return DeclaredDialect.model_validate(values)


def test_a_source_is_an_attribute_and_a_path_in_it() -> None:
    assert split_source("acme.request $.messages[0]") == ("acme.request", "$.messages[0]")
    assert split_source("acme.model") == ("acme.model", None)
    assert Source(dialect=(declared(),)).dialect[0].where == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scope": None}, "Nothing says which spans are meant. Set scope, or where ="),
        ({"fields": {"modell": "acme.model"}}, "Unknown llm field 'modell'"),
        ({"kind": "tool"}, "Unknown tool field 'model'"),
        ({"fields": {"model": "acme.request model"}}, "a JSONPath begins with $"),
        ({"fields": {"model": "acme.request $.[["}}, "'$.[[' is not a JSONPath"),
        ({"fields": {"model": " $.a"}}, "it names no attribute"),
        ({"fields": {}}, "at least 1 item"),
        ({"kind": "node"}, "Input should be"),
    ],
)
def test_a_fault_says_what_to_write(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as error:
        declared(**changes)
    assert message in str(error.value)
