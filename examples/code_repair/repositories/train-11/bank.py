def withdraw(balance, amount):
    """
    >>> withdraw(9, 5)
    4
    """
    return balance * amount
