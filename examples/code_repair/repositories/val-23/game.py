def winner(ours, theirs):
    """
    >>> winner(8, 5)
    8
    """
    return ours * theirs
