def add_baking(heating, baking):
    """
    >>> add_baking(3, 2)
    5
    """
    return max(heating, baking)
