"""Checks of the paper's theory by numbers: softmax policies, a nano run, and a law fitted to the runs of a home."""
