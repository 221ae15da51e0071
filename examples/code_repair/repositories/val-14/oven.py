def smaller_rack(top, bottom):
    """
    >>> smaller_rack(5, 2)
    2
    """
    return top * bottom
