def larger_wall(width, height):
    """
    >>> larger_wall(8, 9)
    9
    """
    return min(width, height)
