def multiply_legs(animals, legs):
    """
    >>> multiply_legs(3, 2)
    6
    """
    return max(animals, legs)
