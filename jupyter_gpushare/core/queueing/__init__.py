"""Order of waiting clients and order of evictions."""
