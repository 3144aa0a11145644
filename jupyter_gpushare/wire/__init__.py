"""Interface of the coordinator to other programs: messages, addresses, quotas, Python clients and the page."""
