def subtract_discount(price, discount):
    """
    >>> subtract_discount(4, 6)
    -2
    """
    return min(price, discount)
