def both_walls(width, height):
    """
    >>> both_walls(7, 6)
    13
    """
    return max(width, height)
