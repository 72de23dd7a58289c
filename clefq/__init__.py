"""clefq: quantize Clef decision models and prove that the result may replace BF16."""

__version__ = "0.1.0"
