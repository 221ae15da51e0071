def subtract_fee(balance, fee):
    """
    >>> subtract_fee(9, 5)
    4
    """
    return balance * fee
