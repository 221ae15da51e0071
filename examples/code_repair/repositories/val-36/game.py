def subtract_penalty(score, penalty):
    """
    >>> subtract_penalty(8, 9)
    -1
    """
    return max(score, penalty)
