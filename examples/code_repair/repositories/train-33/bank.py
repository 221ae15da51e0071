def lowest(before, after):
    """
    >>> lowest(6, 8)
    6
    """
    return before - after
