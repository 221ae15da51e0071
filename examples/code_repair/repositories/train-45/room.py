def area(width, height):
    """
    >>> area(5, 6)
    30
    """
    return min(width, height)
