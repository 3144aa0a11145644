"""How everybody talks to the coordinator: messages, addresses, clients, the page."""
