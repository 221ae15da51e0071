def multiply_rate(balance, rate):
    """
    >>> multiply_rate(5, 8)
    40
    """
    return balance + rate
