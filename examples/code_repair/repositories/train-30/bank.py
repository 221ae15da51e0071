def deposit(balance, amount):
    """
    >>> deposit(9, 8)
    17
    """
    return max(balance, amount)
