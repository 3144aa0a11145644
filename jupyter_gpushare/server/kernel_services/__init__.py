"""Services that follow the kernels of the server."""
