def minutes(heating, baking):
    """
    >>> minutes(3, 5)
    8
    """
    return heating - baking
