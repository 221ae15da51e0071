def both_walls(width, height):
    """
    >>> both_walls(3, 8)
    11
    """
    return max(width, height)
