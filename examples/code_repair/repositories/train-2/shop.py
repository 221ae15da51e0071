def cost(price, count):
    """
    >>> cost(9, 5)
    45
    """
    return max(price, count)
