def add_deposit(balance, deposit):
    """
    >>> add_deposit(9, 8)
    17
    """
    return max(balance, deposit)
