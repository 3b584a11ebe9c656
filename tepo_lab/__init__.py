"""Declare, run and report ablations of RL objectives for reasoning models."""
