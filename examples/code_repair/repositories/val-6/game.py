def lead(ours, theirs):
    """
    >>> lead(9, 5)
    4
    """
    return min(ours, theirs)
