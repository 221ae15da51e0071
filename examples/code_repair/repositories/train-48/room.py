def larger_wall(width, height):
    """
    >>> larger_wall(5, 4)
    5
    """
    return min(width, height)
