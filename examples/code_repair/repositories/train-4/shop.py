def smaller_price(ours, theirs):
    """
    >>> smaller_price(6, 7)
    6
    """
    return ours * theirs
