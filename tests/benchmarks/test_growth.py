"""The table of `make bench-scale`: exponents between sizes, and what is marked as above linear."""

import pytest
from benchmarks.support.growth import (
    LONG,
    TURNS,
    Cost,
    above_linear,
    draw_table,
    exponents,
    median_cost,
)

COSTS = {
    "linear": {10: Cost(1.0), 100: Cost(10.0, 2_000_000), 1_000: Cost(101.0)},
    "quadratic at last": {10: Cost(1.0), 100: Cost(10.0), 1_000: Cost(1_000.0)},
    "constant": {10: Cost(0.5), 1_000: Cost(0.5)},
    "too short to judge": {10: Cost(0.0001), 100: Cost(0.04)},
}


def test_an_exponent_is_the_ratio_of_the_logarithms_between_successive_sizes() -> None:
    assert dict(exponents(COSTS["quadratic at last"])) == pytest.approx({100: 1.0, 1_000: 2.0})
    assert dict(exponents(COSTS["constant"])) == {1_000: 0.0}
    assert dict(exponents(COSTS["too short to judge"])) == {100: None}
    assert dict(exponents({10: Cost(1.0)})) == {}


def test_only_what_grows_faster_than_its_size_is_above_linear() -> None:
    assert above_linear(COSTS) == ["quadratic at last"]


def test_the_table_has_a_row_for_each_operation_and_size_and_marks_what_is_above_linear() -> None:
    costs = {name: COSTS[name] for name in ("linear", "quadratic at last")}
    assert draw_table(costs, "spans").splitlines() == [
        "| operation | spans | CPU s | peak MB | exponent |",
        "| --- | --- | --- | --- | --- |",
        "| linear | 10 | 1.0 |  |  |",
        "| linear | 100 | 10.0 | 2 | 1.00 |",
        "| linear | 1,000 | 101.0 |  | 1.00 |",
        "| quadratic at last | 10 | 1.0 |  |  |",
        "| quadratic at last | 100 | 10.0 |  | 1.00 |",
        "| quadratic at last | 1,000 | 1000.0 |  | 2.00 ! |",
    ]


def test_a_short_operation_is_run_several_times() -> None:
    runs = []
    cost = median_cost(lambda: runs.append(1))
    assert len(runs) == TURNS
    assert 0 <= cost.cpu < LONG
