"""Games of several seats, with turns, private views and rewards by seat."""
