def legs(animals, legs_each):
    """
    >>> legs(8, 9)
    72
    """
    return animals - legs_each
