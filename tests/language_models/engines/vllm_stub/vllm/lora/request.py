"""The stand-in's adapters."""


class LoRARequest:
    """An adapter by number and folder."""

    def __init__(self, name, number, folder):
        self.name, self.number, self.folder = name, number, folder
