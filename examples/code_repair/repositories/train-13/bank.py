def larger_balance(before, after):
    """
    >>> larger_balance(7, 8)
    8
    """
    return before + after
