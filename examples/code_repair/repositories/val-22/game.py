def multiply_level(points, level):
    """
    >>> multiply_level(4, 9)
    36
    """
    return points - level
