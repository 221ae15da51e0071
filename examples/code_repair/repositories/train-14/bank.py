def smaller_balance(before, after):
    """
    >>> smaller_balance(4, 5)
    4
    """
    return before - after
