def withdraw(balance, amount):
    """
    >>> withdraw(6, 5)
    1
    """
    return balance * amount
