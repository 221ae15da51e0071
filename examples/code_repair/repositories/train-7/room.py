def multiply_sides(width, height):
    """
    >>> multiply_sides(8, 2)
    16
    """
    return min(width, height)
