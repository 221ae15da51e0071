def discounted(price, discount):
    """
    >>> discounted(8, 5)
    3
    """
    return price + discount
