def highest(before, after):
    """
    >>> highest(8, 7)
    8
    """
    return before - after
