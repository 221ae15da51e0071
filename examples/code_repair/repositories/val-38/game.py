def winner(ours, theirs):
    """
    >>> winner(9, 4)
    9
    """
    return ours - theirs
