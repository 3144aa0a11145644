"""The scheduler in virtual time: one more edge around the same core. See docs/explanation/simulator.md."""
