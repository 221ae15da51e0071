def multiply_rate(balance, rate):
    """
    >>> multiply_rate(8, 2)
    16
    """
    return max(balance, rate)
