"""What is asked of the figures: gate files, judging, verdicts, plans."""
