"""Builds and trains the bundled miniature; docs/nano.md says how."""
