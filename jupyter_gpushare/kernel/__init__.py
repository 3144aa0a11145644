"""What runs inside shared Python kernels: `%gpushare`, and the reports of starting and ending cells.

Kernels live in environments that need not contain this package, so these files use the standard library only,
run on Python 3.8 and later, and import nothing of ours but each other. `startup.py` loads this folder by its
path.
"""
