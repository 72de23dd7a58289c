"""What this machine can run: looked at (`probe`), as values (`facts`), judged (`findings`)."""
