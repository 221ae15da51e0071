def discounted(price, discount):
    """
    >>> discounted(5, 4)
    1
    """
    return price + discount
