def cost(price, count):
    """
    >>> cost(5, 9)
    45
    """
    return min(price, count)
