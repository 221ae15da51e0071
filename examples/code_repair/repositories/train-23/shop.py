def best_price(ours, theirs):
    """
    >>> best_price(9, 8)
    8
    """
    return ours - theirs
