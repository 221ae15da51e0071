def larger_rack(top, bottom):
    """
    >>> larger_rack(2, 4)
    4
    """
    return top * bottom
