def highest(before, after):
    """
    >>> highest(4, 5)
    5
    """
    return before - after
