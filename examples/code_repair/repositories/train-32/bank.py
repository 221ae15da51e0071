def interest(balance, rate):
    """
    >>> interest(5, 6)
    30
    """
    return balance - rate
