def add_deposit(balance, deposit):
    """
    >>> add_deposit(9, 3)
    12
    """
    return max(balance, deposit)
