"""The functions of the repositories, and the expressions that one of them can return."""

from collections.abc import Sequence

EXPRESSIONS = {
    "sum": "{a} + {b}",
    "difference": "{a} - {b}",
    "product": "{a} * {b}",
    "larger": "max({a}, {b})",
    "smaller": "min({a}, {b})",
}
Function = tuple[str, str, str, str]
"""Its name, its two parameters, and the key of its expression."""
MODULES: dict[str, Sequence[Function]] = {
    "shop": [
        ("add_shipping", "price", "shipping", "sum"),
        ("subtract_discount", "price", "discount", "difference"),
        ("multiply_count", "price", "count", "product"),
        ("larger_price", "ours", "theirs", "larger"),
        ("smaller_price", "ours", "theirs", "smaller"),
    ],
    "room": [
        ("add_walls", "width", "height", "sum"),
        ("subtract_used", "width", "used", "difference"),
        ("multiply_sides", "width", "height", "product"),
        ("larger_wall", "width", "height", "larger"),
        ("smaller_wall", "width", "height", "smaller"),
    ],
    "bank": [
        ("add_deposit", "balance", "deposit", "sum"),
        ("subtract_fee", "balance", "fee", "difference"),
        ("multiply_rate", "balance", "rate", "product"),
        ("larger_balance", "before", "after", "larger"),
        ("smaller_balance", "before", "after", "smaller"),
    ],
    "trip": [
        ("add_days", "outward", "back", "sum"),
        ("subtract_past", "days", "past", "difference"),
        ("multiply_hours", "speed", "hours", "product"),
        ("larger_fare", "car", "train", "larger"),
        ("smaller_fare", "car", "train", "smaller"),
    ],
}
HELD_OUT: dict[str, Sequence[Function]] = {
    "farm": [
        ("add_sheep", "cows", "sheep", "sum"),
        ("subtract_sold", "eggs", "sold", "difference"),
        ("multiply_legs", "animals", "legs", "product"),
        ("larger_barn", "old", "new", "larger"),
        ("smaller_barn", "old", "new", "smaller"),
    ],
    "game": [
        ("add_bonus", "score", "bonus", "sum"),
        ("subtract_penalty", "score", "penalty", "difference"),
        ("multiply_level", "points", "level", "product"),
        ("larger_team", "home", "away", "larger"),
        ("smaller_team", "home", "away", "smaller"),
    ],
    "oven": [
        ("add_baking", "heating", "baking", "sum"),
        ("subtract_cooling", "heat", "cooling", "difference"),
        ("multiply_trays", "loaves", "trays", "product"),
        ("larger_rack", "top", "bottom", "larger"),
        ("smaller_rack", "top", "bottom", "smaller"),
    ],
}


def evaluate(key: str, a: int, b: int) -> int:
    """Return the value of an expression."""
    return int(eval(EXPRESSIONS[key].format(a=a, b=b)))
