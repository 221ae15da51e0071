def subtract_discount(price, discount):
    """
    >>> subtract_discount(8, 5)
    3
    """
    return price + discount
