def score(first, bonus):
    """
    >>> score(5, 9)
    14
    """
    return max(first, bonus)
