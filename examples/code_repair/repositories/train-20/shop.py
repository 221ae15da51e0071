def total(price, shipping):
    """
    >>> total(9, 2)
    11
    """
    return min(price, shipping)
