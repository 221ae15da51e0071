def multiply_rate(balance, rate):
    """
    >>> multiply_rate(5, 6)
    30
    """
    return balance - rate
