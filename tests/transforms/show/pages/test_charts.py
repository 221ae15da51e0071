"""Lines, intervals, alarms and axes as coordinates."""

import math

import pytest

from ltrain_transforms.reports import Chart
from ltrain_transforms.show.pages.charts import (
    HEIGHT,
    TOP,
    ChartOptions,
    draw_chart,
    log_ticks,
    smooth,
    spark_points,
)

LINE = ((0.0, 0.25), (1.0, math.nan), (2.0, 0.5), (3.0, 0.75))


def test_an_interval_is_a_polygon_and_within_the_axis() -> None:
    chart = Chart("t", "wave", "mean", (("a", LINE),), bands={"a": [(0, 0.0, 2.0), (3, 0.5, 1.0)]})
    [line] = draw_chart(chart).lines
    assert len(line.bands) == 1
    places = [float(pair.split(",")[1]) for pair in line.bands[0].split()]
    assert len(places) == 4 and min(places) >= TOP and max(places) <= HEIGHT
    assert draw_chart(chart).y_ticks[-1].text == "2"
    single = Chart("t", "wave", "mean", (("a", LINE),), bands={"a": [(0, 0.0, 2.0)]})
    assert draw_chart(single).lines[0].bands == ()


def test_alarms_are_on_the_axis_of_the_waves() -> None:
    marks = ((1, "few answers"), (99, "of another run"))
    drawn = draw_chart(Chart("t", "wave", "mean", (("a", LINE),), marks=marks))
    assert [mark.text for mark in drawn.marks] == ["few answers"]


def test_the_values_of_a_cursor_are_finite() -> None:
    drawn = draw_chart(Chart("t", "wave", "mean", (("a", LINE),)))
    assert drawn.values == [((0.0, 0.25), (2.0, 0.5), (3.0, 0.75))]
    many = tuple((float(x), 0.0) for x in range(6000))
    assert draw_chart(Chart("t", "wave", "mean", (("a", many),))).values == ()


def test_a_logarithmic_axis_needs_positive_values() -> None:
    options = ChartOptions(is_log=True)
    lines = (("a", ((0.0, 1e-4), (1.0, 1e-2), (2.0, 1.0))),)
    drawn = draw_chart(Chart("t", "wave", "loss", lines), options)
    assert [tick.text for tick in drawn.y_ticks] == ["0.0001", "0.001", "0.01", "0.1", "1"]
    low, middle, high = (dot.y for dot in drawn.lines[0].dots)
    assert low - middle == pytest.approx(middle - high)
    signed = (("a", ((0.0, -1.0), (1.0, 1.0))),)
    linear = draw_chart(Chart("t", "wave", "loss", signed), options)
    assert linear == draw_chart(Chart("t", "wave", "loss", signed))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.3, 0.9], [0.2, 0.5, 1]),
        ([2.0, 2.0], [2, 5]),
        ([1.0], [1, 2]),
        ([1e-9, 1e9], [1e-9, 1e-5, 1e-1, 1e3, 1e7, 1e11]),
    ],
)
def test_logarithmic_ticks_enclose_the_values(values: list[float], expected: list[float]) -> None:
    assert log_ticks(values) == pytest.approx(expected)


def test_a_moving_average_starts_at_the_first_value_and_keeps_gaps() -> None:
    smoothed = smooth(((0.0, 1.0), (1.0, math.nan), (2.0, 3.0)), 0.5)
    assert smoothed[0] == (0.0, 1.0) and math.isnan(smoothed[1][1])
    assert smoothed[2][1] == pytest.approx((0.5 * 1 + 3) / 1.5)
    assert smooth(LINE[:1], 0.0) == LINE[:1]


def test_a_small_line_fits_its_box() -> None:
    assert spark_points((0.0, 0.5, 1.0)) == "2.0,16.0 32.0,9.0 62.0,2.0"
    assert spark_points((1.0, 1.0)) == "2.0,16.0 62.0,16.0"
    assert spark_points((math.nan,)) == "2.0,16.0"
