def larger_balance(before, after):
    """
    >>> larger_balance(6, 8)
    8
    """
    return before - after
