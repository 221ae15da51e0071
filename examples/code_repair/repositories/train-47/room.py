def longest_wall(width, height):
    """
    >>> longest_wall(5, 2)
    5
    """
    return width - height
