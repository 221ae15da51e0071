def subtract_fee(balance, fee):
    """
    >>> subtract_fee(6, 5)
    1
    """
    return balance * fee
