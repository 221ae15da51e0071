def lowest(before, after):
    """
    >>> lowest(7, 8)
    7
    """
    return before + after
