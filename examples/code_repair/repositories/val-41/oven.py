def subtract_cooling(heat, cooling):
    """
    >>> subtract_cooling(5, 2)
    3
    """
    return min(heat, cooling)
