def lead(ours, theirs):
    """
    >>> lead(8, 9)
    -1
    """
    return max(ours, theirs)
