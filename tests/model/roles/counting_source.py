"""Tensors in memory that record which of them were read."""

from mdir_hf.model.files import MemorySource


class CountingSource(MemorySource):
    """A source in memory that records the tensors and rows that are read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.reads = []
        """Names of tensors that were read whole."""
        self.asked = []
        """Names, and the rows read from each."""

    def read(self, name):
        self.reads.append(name)
        return super().read(name)

    def read_rows(self, name, rows):
        self.asked.append((name, rows.tolist()))
        return super().read_rows(name, rows)
