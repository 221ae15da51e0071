import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from ltrain_collector.signals.values import value_text


def floating(value: float) -> AnyValue:
    return AnyValue(double_value=value)


@pytest.mark.parametrize(
    ("fill", "expected"),
    [
        (lambda v: setattr(v, "string_value", ""), ""),
        (lambda v: setattr(v, "int_value", -(2**63)), "-9223372036854775808"),
        (lambda v: setattr(v, "bool_value", False), "false"),
        (lambda v: setattr(v, "double_value", 1.0), "1"),
        (lambda v: setattr(v, "double_value", -0.25), "-0.25"),
        (lambda v: setattr(v, "bytes_value", b"\x00\xff"), "AP8="),
        (lambda v: v.array_value.values.add(string_value="é"), '["é"]'),
        (lambda v: v.array_value.values.add(int_value=0), "[0]"),
        (lambda v: v.kvlist_value.values.add(key="k").value.CopyFrom(AnyValue()), '{"k":null}'),
        (lambda v: None, ""),
    ],
)
def test_every_kind_of_value_becomes_text(
    fill: Callable[[AnyValue], object], expected: str
) -> None:
    value = AnyValue()
    fill(value)
    assert value_text(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-10, "1.5e-10"),
        (1e16, "10000000000000000"),
        (1.5e300, "1.5e+300"),
        (1e21, "1e+21"),
        (-0.0, "-0"),
        (math.nan, "json: unsupported value: NaN"),
        (-math.inf, "json: unsupported value: -Inf"),
    ],
)
def test_a_double_is_written_as_go_writes_it(value: float, expected: str) -> None:
    assert value_text(floating(value)) == expected


def test_a_structure_is_json_without_blanks_and_with_its_keys_in_order() -> None:
    value = AnyValue()
    for key in ("b", "a", "b"):
        inner = value.kvlist_value.values.add(key=key).value.array_value.values
        inner.add(double_value=2.0)
        inner.add(string_value='<"\u2028\n')
        inner.add(bytes_value=b"\x01")
        inner.add(bool_value=True)
    items = '[2,"<\\"\\u2028\\n","AQ==",true]'
    assert value_text(value) == f'{{"a":{items},"b":{items}}}'


def test_an_infinite_log_probability_does_not_lose_the_others() -> None:
    value = AnyValue()
    for number in (-0.5, -math.inf, math.nan):
        value.array_value.values.add(double_value=number)
    assert value_text(value) == "[-0.5,-Infinity,NaN]"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_is_returned_unchanged(value: float) -> None:
    assert float(value_text(floating(value))) == value


@given(st.dictionaries(st.text(), st.lists(st.text())))
def test_every_structure_is_returned_unchanged(structure: dict[str, list[str]]) -> None:
    value = AnyValue(kvlist_value={})  # type: ignore[arg-type]
    for key, items in structure.items():
        inner = value.kvlist_value.values.add(key=key).value
        inner.array_value.SetInParent()
        for item in items:
            inner.array_value.values.add(string_value=item)
    assert json.loads(value_text(value)) == structure
