def subtract_discount(price, discount):
    """
    >>> subtract_discount(5, 4)
    1
    """
    return price + discount
