def add_walls(width, height):
    """
    >>> add_walls(5, 6)
    11
    """
    return min(width, height)
