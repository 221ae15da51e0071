def cost(price, count):
    """
    >>> cost(3, 2)
    6
    """
    return min(price, count)
