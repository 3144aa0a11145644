"""Part of the package that runs inside shared Python kernels: `%gpushare` and the reports of cells.

The environment of a kernel need not contain this package, so `startup.py` loads this folder by its path.
The files of this folder use only the standard library and run on Python 3.8 and later.
From the package, these files import only each other and `jupyter_gpushare.units`.
"""
