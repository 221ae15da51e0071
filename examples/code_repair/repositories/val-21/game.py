def lead(ours, theirs):
    """
    >>> lead(5, 3)
    2
    """
    return ours * theirs
