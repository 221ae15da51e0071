def longest_wall(width, height):
    """
    >>> longest_wall(8, 2)
    8
    """
    return min(width, height)
