def highest(before, after):
    """
    >>> highest(3, 2)
    3
    """
    return min(before, after)
