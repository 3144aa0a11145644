"""Harness, programs and synthetic clients of the benches."""
