def subtract_penalty(score, penalty):
    """
    >>> subtract_penalty(9, 5)
    4
    """
    return min(score, penalty)
