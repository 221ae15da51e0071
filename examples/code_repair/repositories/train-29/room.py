def smaller_wall(width, height):
    """
    >>> smaller_wall(4, 6)
    4
    """
    return width - height
