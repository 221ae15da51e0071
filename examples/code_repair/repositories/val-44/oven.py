def smaller_rack(top, bottom):
    """
    >>> smaller_rack(9, 4)
    4
    """
    return max(top, bottom)
