def free_space(width, used):
    """
    >>> free_space(2, 9)
    -7
    """
    return min(width, used)
