def total(price, shipping):
    """
    >>> total(9, 8)
    17
    """
    return max(price, shipping)
