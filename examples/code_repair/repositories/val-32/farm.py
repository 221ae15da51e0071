def multiply_legs(animals, legs):
    """
    >>> multiply_legs(8, 9)
    72
    """
    return animals - legs
