"""Estimators: demand, switch cost, recent usage and the time limit."""
