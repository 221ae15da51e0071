def score(first, bonus):
    """
    >>> score(3, 2)
    5
    """
    return min(first, bonus)
