def multiply_sides(width, height):
    """
    >>> multiply_sides(3, 6)
    18
    """
    return width - height
