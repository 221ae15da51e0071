def winner(ours, theirs):
    """
    >>> winner(7, 5)
    7
    """
    return min(ours, theirs)
