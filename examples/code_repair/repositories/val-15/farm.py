def add_sheep(cows, sheep):
    """
    >>> add_sheep(6, 2)
    8
    """
    return cows - sheep
