def legs(animals, legs_each):
    """
    >>> legs(4, 3)
    12
    """
    return max(animals, legs_each)
