"""The bundled miniature of Clef: its tasks, its builder, its weights and its sets."""
