"""Spending less on settings that will not win: runs stopped early, and short trials before whole ones."""
