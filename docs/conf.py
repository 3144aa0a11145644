"""Configuration of Sphinx for the documents as a site, which `make docs` builds."""

from jupyter_gpushare import __version__

project = "jupyter-gpushare"
release = __version__
extensions = ["myst_parser"]
html_theme = "pydata_sphinx_theme"
exclude_patterns = ["_build"]
myst_heading_anchors = 3  # links to headings as on GitHub
