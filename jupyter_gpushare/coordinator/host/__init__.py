"""Services of the operating system: users, memory and processes of this host."""
