"""Helpers of the tests: rank processes, ring reading."""
