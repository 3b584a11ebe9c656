"""Intervals, paired differences, correction for many comparisons, avg@k and pass@k: numpy and scipy only, seeded."""
