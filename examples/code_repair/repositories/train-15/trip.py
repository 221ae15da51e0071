def add_days(outward, back):
    """
    >>> add_days(9, 4)
    13
    """
    return min(outward, back)
