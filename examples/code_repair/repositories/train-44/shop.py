def smaller_price(ours, theirs):
    """
    >>> smaller_price(3, 5)
    3
    """
    return ours * theirs
