"""Environments and kernelspecs of kernels that share a GPU."""
