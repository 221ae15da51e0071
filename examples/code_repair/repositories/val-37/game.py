def multiply_level(points, level):
    """
    >>> multiply_level(6, 5)
    30
    """
    return points - level
