def total(price, shipping):
    """
    >>> total(8, 2)
    10
    """
    return max(price, shipping)
