def deposit(balance, amount):
    """
    >>> deposit(8, 5)
    13
    """
    return balance - amount
