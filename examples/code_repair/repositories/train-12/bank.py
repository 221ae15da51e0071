def interest(balance, rate):
    """
    >>> interest(8, 2)
    16
    """
    return max(balance, rate)
