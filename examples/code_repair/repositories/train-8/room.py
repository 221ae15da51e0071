def shortest_wall(width, height):
    """
    >>> shortest_wall(8, 9)
    8
    """
    return max(width, height)
