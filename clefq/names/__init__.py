"""What names mean: run folders, variants, sets, hub ids and predictions files."""
