def add_baking(heating, baking):
    """
    >>> add_baking(3, 7)
    10
    """
    return heating * baking
