def subtract_cooling(heat, cooling):
    """
    >>> subtract_cooling(2, 9)
    -7
    """
    return heat * cooling
