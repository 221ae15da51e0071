"""Numbers of things in sentences."""


def quantity(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 update` or `1,024 updates`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
