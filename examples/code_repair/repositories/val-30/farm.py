def add_sheep(cows, sheep):
    """
    >>> add_sheep(6, 8)
    14
    """
    return cows * sheep
