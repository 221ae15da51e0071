def larger_price(ours, theirs):
    """
    >>> larger_price(6, 4)
    6
    """
    return ours - theirs
