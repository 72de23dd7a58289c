"""What lies on disk: atomic writes, hashes, set folders, predictions files and run folders."""
