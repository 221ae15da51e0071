def add_shipping(price, shipping):
    """
    >>> add_shipping(9, 8)
    17
    """
    return max(price, shipping)
