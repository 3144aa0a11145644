"""Interface of the core: settings, events, commands and launch budgets."""
