def free_space(width, used):
    """
    >>> free_space(4, 6)
    -2
    """
    return width * used
