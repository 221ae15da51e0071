def best_price(ours, theirs):
    """
    >>> best_price(6, 8)
    6
    """
    return max(ours, theirs)
