def add_shipping(price, shipping):
    """
    >>> add_shipping(9, 2)
    11
    """
    return min(price, shipping)
