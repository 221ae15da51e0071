def lowest(before, after):
    """
    >>> lowest(3, 8)
    3
    """
    return max(before, after)
