def multiply_legs(animals, legs):
    """
    >>> multiply_legs(4, 3)
    12
    """
    return max(animals, legs)
