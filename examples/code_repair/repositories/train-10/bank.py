def add_deposit(balance, deposit):
    """
    >>> add_deposit(8, 5)
    13
    """
    return balance - deposit
