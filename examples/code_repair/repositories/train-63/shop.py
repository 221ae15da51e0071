def best_price(ours, theirs):
    """
    >>> best_price(6, 4)
    4
    """
    return ours - theirs
