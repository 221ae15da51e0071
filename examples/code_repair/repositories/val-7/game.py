def multiply_level(points, level):
    """
    >>> multiply_level(9, 4)
    36
    """
    return points + level
