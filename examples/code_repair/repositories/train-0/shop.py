def add_shipping(price, shipping):
    """
    >>> add_shipping(8, 2)
    10
    """
    return max(price, shipping)
