def free_space(width, used):
    """
    >>> free_space(7, 2)
    5
    """
    return width + used
