"""Environments of shared kernels and programs, and the registration of their clients."""
