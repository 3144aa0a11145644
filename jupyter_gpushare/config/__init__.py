"""Traits and command-line options for the settings."""
