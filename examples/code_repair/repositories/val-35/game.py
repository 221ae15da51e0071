def score(first, bonus):
    """
    >>> score(2, 6)
    8
    """
    return first - bonus
