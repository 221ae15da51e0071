def add_shipping(price, shipping):
    """
    >>> add_shipping(7, 5)
    12
    """
    return min(price, shipping)
