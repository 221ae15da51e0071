def smaller_rack(top, bottom):
    """
    >>> smaller_rack(6, 9)
    6
    """
    return max(top, bottom)
