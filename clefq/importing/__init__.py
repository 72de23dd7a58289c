"""Other tools' answers become predictions: their formats, and what they must agree with."""
