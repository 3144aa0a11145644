"""Simulator of workloads in virtual time: another edge around the same core. See docs/explanation/simulator.md."""
