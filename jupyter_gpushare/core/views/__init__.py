"""Read-only views of the core: wait forecasts and invariants."""
