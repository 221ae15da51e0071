def minutes(heating, baking):
    """
    >>> minutes(3, 7)
    10
    """
    return heating * baking
