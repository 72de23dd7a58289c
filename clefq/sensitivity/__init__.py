"""Which blocks suffer from quantization, and the mixed recipe that fits a size or speed budget."""
