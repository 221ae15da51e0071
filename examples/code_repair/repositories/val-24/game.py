def loser(ours, theirs):
    """
    >>> loser(4, 6)
    4
    """
    return max(ours, theirs)
