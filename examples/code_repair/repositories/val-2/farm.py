def legs(animals, legs_each):
    """
    >>> legs(3, 2)
    6
    """
    return max(animals, legs_each)
