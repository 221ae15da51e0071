def add_sheep(cows, sheep):
    """
    >>> add_sheep(5, 6)
    11
    """
    return cows - sheep
