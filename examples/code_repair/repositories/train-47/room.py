def multiply_sides(width, height):
    """
    >>> multiply_sides(5, 2)
    10
    """
    return width - height
