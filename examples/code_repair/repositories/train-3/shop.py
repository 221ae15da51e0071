def best_price(ours, theirs):
    """
    >>> best_price(5, 4)
    4
    """
    return ours * theirs
