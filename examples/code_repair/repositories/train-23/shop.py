def larger_price(ours, theirs):
    """
    >>> larger_price(9, 8)
    9
    """
    return ours - theirs
