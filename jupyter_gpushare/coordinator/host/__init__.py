"""Services for the host: its users, memory, device locks and event loop, and text for other users."""
