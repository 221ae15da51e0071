def legs(animals, legs_each):
    """
    >>> legs(5, 4)
    20
    """
    return animals - legs_each
