def smaller_price(ours, theirs):
    """
    >>> smaller_price(8, 6)
    6
    """
    return ours * theirs
