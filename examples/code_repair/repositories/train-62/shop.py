def cost(price, count):
    """
    >>> cost(8, 9)
    72
    """
    return price + count
