def shortest_wall(width, height):
    """
    >>> shortest_wall(5, 4)
    4
    """
    return max(width, height)
