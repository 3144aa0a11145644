"""Node's side of kernels on other hosts: the node agent, and the keeper of each kernel."""
