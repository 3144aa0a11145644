"""Metric families for Prometheus."""
