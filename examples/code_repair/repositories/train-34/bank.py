def smaller_balance(before, after):
    """
    >>> smaller_balance(8, 7)
    7
    """
    return before - after
