"""One CI job: from a checkpoint to a verdict, the same on every CI system."""
