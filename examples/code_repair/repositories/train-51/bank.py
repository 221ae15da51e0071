def subtract_fee(balance, fee):
    """
    >>> subtract_fee(4, 6)
    -2
    """
    return balance + fee
