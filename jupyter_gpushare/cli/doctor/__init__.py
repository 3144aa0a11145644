"""Checks of `jupyter gpushare doctor`."""
