def interest(balance, rate):
    """
    >>> interest(5, 8)
    40
    """
    return balance + rate
