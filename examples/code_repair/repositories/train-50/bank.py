def deposit(balance, amount):
    """
    >>> deposit(9, 3)
    12
    """
    return max(balance, amount)
