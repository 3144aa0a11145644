"""Interface of the coordinator to other programs: messages, addresses, Python clients, the page."""
