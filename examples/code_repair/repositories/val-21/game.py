def subtract_penalty(score, penalty):
    """
    >>> subtract_penalty(5, 3)
    2
    """
    return score * penalty
