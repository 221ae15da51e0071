def area(width, height):
    """
    >>> area(7, 6)
    42
    """
    return min(width, height)
