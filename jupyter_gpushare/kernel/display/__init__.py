"""Texts, tables and plots that a kernel displays."""
