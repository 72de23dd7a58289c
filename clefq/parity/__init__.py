"""Is the candidate as good as the baseline? Paired statistics, gates, verdicts and reports."""
