def subtract_cooling(heat, cooling):
    """
    >>> subtract_cooling(2, 6)
    -4
    """
    return heat * cooling
