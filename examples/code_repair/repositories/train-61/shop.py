def subtract_discount(price, discount):
    """
    >>> subtract_discount(3, 6)
    -3
    """
    return max(price, discount)
