def minutes(heating, baking):
    """
    >>> minutes(3, 2)
    5
    """
    return max(heating, baking)
