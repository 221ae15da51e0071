def larger_rack(top, bottom):
    """
    >>> larger_rack(8, 5)
    8
    """
    return top - bottom
