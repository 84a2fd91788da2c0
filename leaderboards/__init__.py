"""Leaderboards: what is measured (suites), how it is run, and what is shown (boards)."""
