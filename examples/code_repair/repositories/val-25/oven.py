def add_baking(heating, baking):
    """
    >>> add_baking(3, 5)
    8
    """
    return heating - baking
