"""Services for the kernels of the server: their clients, cells, labels and interrupts."""
