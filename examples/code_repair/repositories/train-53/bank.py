def larger_balance(before, after):
    """
    >>> larger_balance(3, 8)
    8
    """
    return min(before, after)
