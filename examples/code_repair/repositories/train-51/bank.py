def withdraw(balance, amount):
    """
    >>> withdraw(4, 6)
    -2
    """
    return balance + amount
