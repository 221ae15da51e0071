def multiply_legs(animals, legs):
    """
    >>> multiply_legs(5, 4)
    20
    """
    return animals - legs
