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
        ("total", "price", "shipping", "sum"),
        ("discounted", "price", "discount", "difference"),
        ("cost", "price", "count", "product"),
        ("best_price", "ours", "theirs", "smaller"),
        ("dearest", "first", "second", "larger"),
    ],
    "room": [
        ("area", "width", "height", "product"),
        ("both_walls", "width", "height", "sum"),
        ("longest_wall", "width", "height", "larger"),
        ("shortest_wall", "width", "height", "smaller"),
        ("free_space", "width", "used", "difference"),
    ],
    "bank": [
        ("deposit", "balance", "amount", "sum"),
        ("withdraw", "balance", "amount", "difference"),
        ("interest", "balance", "rate", "product"),
        ("lowest", "before", "after", "smaller"),
        ("highest", "before", "after", "larger"),
    ],
    "trip": [
        ("distance", "speed", "hours", "product"),
        ("all_days", "outward", "back", "sum"),
        ("days_left", "days", "past", "difference"),
        ("slower", "car", "train", "larger"),
        ("faster", "car", "train", "smaller"),
    ],
}
HELD_OUT: dict[str, Sequence[Function]] = {
    "farm": [
        ("animals", "cows", "sheep", "sum"),
        ("unsold", "eggs", "sold", "difference"),
        ("legs", "animals", "legs_each", "product"),
        ("heaviest", "cow", "sheep", "larger"),
        ("lightest", "cow", "sheep", "smaller"),
    ],
    "game": [
        ("score", "first", "bonus", "sum"),
        ("lead", "ours", "theirs", "difference"),
        ("points", "hits", "value", "product"),
        ("winner", "ours", "theirs", "larger"),
        ("loser", "ours", "theirs", "smaller"),
    ],
    "oven": [
        ("minutes", "heating", "baking", "sum"),
        ("too_hot", "now", "wanted", "difference"),
        ("loaves", "trays", "per_tray", "product"),
        ("hottest", "top", "bottom", "larger"),
        ("coolest", "top", "bottom", "smaller"),
    ],
}
