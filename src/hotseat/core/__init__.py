"""Decide, step by step, which request computes which tokens in which seat and block.

Must not know: clocks, threads, I/O, arrays, models, HTTP.
"""
