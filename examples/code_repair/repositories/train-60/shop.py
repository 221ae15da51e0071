def total(price, shipping):
    """
    >>> total(7, 5)
    12
    """
    return min(price, shipping)
