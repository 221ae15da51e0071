def smaller_wall(width, height):
    """
    >>> smaller_wall(2, 9)
    2
    """
    return max(width, height)
