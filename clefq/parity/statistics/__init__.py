"""What two sets of answers say: joining, divergences, intervals, figures."""
