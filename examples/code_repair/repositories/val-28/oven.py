def larger_rack(top, bottom):
    """
    >>> larger_rack(4, 9)
    9
    """
    return top * bottom
