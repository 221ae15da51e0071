def longest_wall(width, height):
    """
    >>> longest_wall(3, 6)
    6
    """
    return width - height
