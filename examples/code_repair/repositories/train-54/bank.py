def smaller_balance(before, after):
    """
    >>> smaller_balance(3, 2)
    2
    """
    return max(before, after)
