def larger_price(ours, theirs):
    """
    >>> larger_price(6, 8)
    8
    """
    return min(ours, theirs)
