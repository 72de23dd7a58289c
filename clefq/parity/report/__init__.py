"""What is written: parity.json and its views."""
